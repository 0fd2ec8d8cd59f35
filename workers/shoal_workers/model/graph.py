"""Forward passes over packed rows, in torch: exported for OpenVINO, and run by the torch engine.

Both take the arrays of a `Packing` and return token vectors, float32 `[rows, length, dimension]`.
"""

from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch.nn.functional import embedding


class PackedBert(torch.nn.Module):
    """BERT with attention only within each text of a row. It shares the model's weights that it does not join."""

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
        scale[: self.width] = (self.width // num_heads) ** -0.5  # the scaling of attention scores, done once
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
    """A model of any other architecture, with one text in each row."""

    def __init__(self, transformer: torch.nn.Module):
        super().__init__()
        self.transformer = transformer

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        mask = (bias[:, 0, 0, :] == 0).long()  # the tokens that the first token attends to are those of the text
        features = {"input_ids": ids.long() * mask, "attention_mask": mask}
        tokens: torch.Tensor = self.transformer(features)["token_embeddings"]
        # `positions` is not needed here; adding zero times it keeps it an input of the exported graph.
        return tokens + positions[:, :, None] * 0.0


def shares_rows(model: SentenceTransformer) -> bool:
    """Return true if several texts can share a row: for a plain BERT, which `PackedBert` computes."""
    bert: Any = model[0].auto_model
    return (
        type(bert).__name__ == "BertModel"
        and getattr(bert.config, "position_embedding_type", "absolute") == "absolute"
        and not bert.config.is_decoder
    )


def packed_module(model: SentenceTransformer) -> torch.nn.Module:
    """Return the fastest module that computes the model's token vectors."""
    module = PackedBert(model[0].auto_model) if shares_rows(model) else PaddedModel(model[0])
    return module.eval()
