"""Forward passes over packed rows, in torch: what is exported for OpenVINO and what the torch engine runs.

Both take the arrays of a `Packing` and return token vectors, float32 `[rows, length, dimension]`.
"""

from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch.nn.functional import embedding


class PackedBert(torch.nn.Module):
    """BERT with attention within each text of a row. Shares the model's weights, but for those it puts together."""

    def __init__(self, bert: Any):
        super().__init__()
        self.words = bert.embeddings.word_embeddings
        # Token types are all 0, so their one vector is part of every position's.
        offset = bert.embeddings.token_type_embeddings.weight[0]
        self.positions = torch.nn.Parameter(bert.embeddings.position_embeddings.weight + offset)
        self.norm = bert.embeddings.LayerNorm
        num_heads = bert.config.num_attention_heads
        self.layers = torch.nn.ModuleList(_PackedLayer(layer, num_heads) for layer in bert.encoder.layer)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        tokens: torch.Tensor = self.norm(self.words(ids) + embedding(positions, self.positions))
        for layer in self.layers:
            tokens = layer(tokens, bias)
        return tokens


class _PackedLayer(torch.nn.Module):
    def __init__(self, layer: Any, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        attention = layer.attention.self
        parts = [attention.query, attention.key, attention.value]
        self.width = parts[0].weight.shape[0]
        self.qkv = torch.nn.Linear(self.width, 3 * self.width)  # one product instead of three
        scale = torch.ones(3 * self.width)
        scale[: self.width] = (self.width // num_heads) ** -0.5  # the scaling of the scores, done once and for all
        self.qkv.weight = torch.nn.Parameter(torch.cat([part.weight for part in parts]) * scale[:, None])
        self.qkv.bias = torch.nn.Parameter(torch.cat([part.bias for part in parts]) * scale)
        self.mix, self.mix_norm = layer.attention.output.dense, layer.attention.output.LayerNorm
        self.up, self.activation = layer.intermediate.dense, layer.intermediate.intermediate_act_fn
        self.down, self.down_norm = layer.output.dense, layer.output.LayerNorm

    def forward(self, tokens: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        rows, length = bias.shape[0], bias.shape[3]
        heads = self.qkv(tokens).reshape(rows, length, 3, self.num_heads, self.width // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = torch.softmax(query @ key.transpose(-1, -2) + bias, -1) @ value
        mixed = mixed.permute(0, 2, 1, 3).reshape(rows, length, self.width)
        tokens = self.mix_norm(tokens + self.mix(mixed))
        result: torch.Tensor = self.down_norm(tokens + self.down(self.activation(self.up(tokens))))
        return result


class PaddedModel(torch.nn.Module):
    """Any other architecture, with one text to a row."""

    def __init__(self, transformer: torch.nn.Module):
        super().__init__()
        self.transformer = transformer

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        mask = (bias[:, 0, 0, :] == 0).long()  # what the first token, which is in the text, looks at
        features = {"input_ids": ids.long() * mask, "attention_mask": mask}
        tokens: torch.Tensor = self.transformer(features)["token_embeddings"]
        # `positions` takes no part here; adding nothing of it keeps it an input of the exported graph.
        return tokens + positions[:, :, None] * 0.0


def shares_rows(model: SentenceTransformer) -> bool:
    """Whether several texts can share a row: for a plain BERT, whose forward pass is ours."""
    bert: Any = model[0].auto_model
    return (
        type(bert).__name__ == "BertModel"
        and getattr(bert.config, "position_embedding_type", "absolute") == "absolute"
        and not bert.config.is_decoder
    )


def packed_module(model: SentenceTransformer) -> torch.nn.Module:
    """The fastest module that computes the model's token vectors."""
    module = PackedBert(model[0].auto_model) if shares_rows(model) else PaddedModel(model[0])
    return module.eval()
