"""Forward passes over packed tokens, in torch: what is exported for OpenVINO and what the torch engine runs.

Both take the arrays of a `Packing` and return token vectors, float32 `[tokens, dimension]`.
"""

from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch.nn.functional import embedding, scaled_dot_product_attention


class PackedBert(torch.nn.Module):
    """BERT with linear layers on packed tokens and only attention on padded rows. Shares the model's weights."""

    def __init__(self, bert: Any):
        super().__init__()
        self.num_heads = bert.config.num_attention_heads
        self.words = bert.embeddings.word_embeddings
        # Token types are all 0, so their one vector is part of every position's.
        offset = bert.embeddings.token_type_embeddings.weight[0]
        self.positions = torch.nn.Parameter(bert.embeddings.position_embeddings.weight + offset)
        self.norm = bert.embeddings.LayerNorm
        self.layers = torch.nn.ModuleList(_PackedLayer(layer, self.num_heads) for layer in bert.encoder.layer)

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        places: torch.Tensor,
        bias: torch.Tensor,
        back: torch.Tensor,
    ) -> torch.Tensor:
        tokens: torch.Tensor = self.norm(self.words(ids) + embedding(positions, self.positions))
        for layer in self.layers:
            tokens = layer(tokens, places, bias, back)
        return tokens


class _PackedLayer(torch.nn.Module):
    def __init__(self, layer: Any, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        attention = layer.attention.self
        parts = (attention.query, attention.key, attention.value)
        width = parts[0].weight.shape[0]
        self.qkv = torch.nn.Linear(width, 3 * width)  # one product instead of three
        self.qkv.weight = torch.nn.Parameter(torch.cat([part.weight for part in parts]))
        self.qkv.bias = torch.nn.Parameter(torch.cat([part.bias for part in parts]))
        self.mix, self.mix_norm = layer.attention.output.dense, layer.attention.output.LayerNorm
        self.up, self.activation = layer.intermediate.dense, layer.intermediate.intermediate_act_fn
        self.down, self.down_norm = layer.output.dense, layer.output.LayerNorm

    def forward(
        self, tokens: torch.Tensor, places: torch.Tensor, bias: torch.Tensor, back: torch.Tensor
    ) -> torch.Tensor:
        rows, length, width = places.shape[0], places.shape[1], tokens.shape[1]
        heads = embedding(places, self.qkv(tokens)).reshape(rows, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=bias)
        mixed = embedding(back, mixed.permute(0, 2, 1, 3).reshape(rows * length, width))
        tokens = self.mix_norm(tokens + self.mix(mixed))
        result: torch.Tensor = self.down_norm(tokens + self.down(self.activation(self.up(tokens))))
        return result


class PaddedModel(torch.nn.Module):
    """Any other architecture, on padded rows from end to end."""

    def __init__(self, transformer: torch.nn.Module):
        super().__init__()
        self.transformer = transformer

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        places: torch.Tensor,
        bias: torch.Tensor,
        back: torch.Tensor,
    ) -> torch.Tensor:
        mask = (bias[:, 0, 0, :] == 0).long()
        features = {"input_ids": ids.long()[places.long()] * mask, "attention_mask": mask}
        tokens: torch.Tensor = self.transformer(features)["token_embeddings"]
        # `positions` takes no part here; adding nothing of it keeps it an input of the exported graph.
        return tokens.flatten(0, 1)[back.long()] + positions[:, None] * 0.0


def packed_module(model: SentenceTransformer) -> torch.nn.Module:
    """The fastest module that computes the model's token vectors."""
    transformer = model[0]
    bert: Any = transformer.auto_model
    is_plain_bert = (
        type(bert).__name__ == "BertModel"
        and getattr(bert.config, "position_embedding_type", "absolute") == "absolute"
        and not bert.config.is_decoder
    )
    return (PackedBert(bert) if is_plain_bert else PaddedModel(transformer)).eval()
