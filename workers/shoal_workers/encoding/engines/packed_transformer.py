"""The forward pass over packed rows in torch, which the torch engine runs: what `model.graph` builds for OpenVINO."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from shoal_workers.model.transformer import Layer, Linear, Norm, Transformer

_FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


class PackedTransformer(torch.nn.Module):
    """A transformer with attention only within each text of a row.

    Takes the arrays of a `Packing` and returns token vectors `[rows, length, dimension]`, in the weights' type.
    """

    def __init__(self, transformer: Transformer):
        super().__init__()
        self.words, self.positions = _parameter(transformer.words), _parameter(transformer.positions)
        self.norm = _norm(transformer.norm, transformer.eps)
        self.layers = torch.nn.ModuleList(_PackedLayer(layer, transformer) for layer in transformer.layers)
        bias = transformer.relative_bias
        self.relative_bias = None if bias is None else _parameter(bias)
        self.farthest = transformer.num_positions - 1
        self.head = torch.nn.ModuleList()
        if transformer.head is not None:
            dense, function, out = transformer.head
            self.head.extend([_linear(dense), _Function(function), _linear(out)])

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        tokens = functional.embedding(ids, self.words) + functional.embedding(positions, self.positions)
        if self.relative_bias is not None:
            distance = positions[:, None, :] - positions[:, :, None] + self.farthest
            bias = bias + functional.embedding(distance, self.relative_bias).permute(0, 3, 1, 2)
        tokens = self.norm(tokens)
        for layer in self.layers:
            tokens = layer(tokens, bias)
        for step in self.head:
            tokens = step(tokens)
        result: torch.Tensor = tokens
        return result


class _PackedLayer(torch.nn.Module):
    def __init__(self, layer: Layer, transformer: Transformer):
        super().__init__()
        self.num_heads, self.activation = transformer.num_heads, _FUNCTIONS[transformer.activation]
        self.qkv, self.attention_out = _linear(layer.qkv), _linear(layer.attention_out)
        self.up, self.down = _linear(layer.up), _linear(layer.down)
        self.attention_norm, self.output_norm = (
            _norm(norm, transformer.eps) for norm in (layer.attention_norm, layer.output_norm)
        )

    def forward(self, tokens: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        rows, length, width = tokens.shape
        heads = self.qkv(tokens).reshape(rows, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = torch.softmax(query @ key.transpose(-1, -2) + bias, -1) @ value
        attended = attended.permute(0, 2, 1, 3).reshape(rows, length, width)
        tokens = self.attention_norm(tokens + self.attention_out(attended))
        result: torch.Tensor = self.output_norm(tokens + self.down(self.activation(self.up(tokens))))
        return result


class _Function(torch.nn.Module):
    def __init__(self, name: str):
        super().__init__()
        self.function = _FUNCTIONS[name]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.function(tokens)


def _linear(linear: Linear) -> torch.nn.Linear:
    made = torch.nn.Linear(linear.weights.shape[1], linear.weights.shape[0], device="meta")
    made.weight, made.bias = _parameter(linear.weights), _parameter(linear.bias)
    return made


def _norm(norm: Norm, eps: float) -> torch.nn.LayerNorm:
    made = torch.nn.LayerNorm(norm.scale.size, eps, device="meta")
    made.weight, made.bias = _parameter(norm.scale), _parameter(norm.shift)
    return made


def _parameter(array: NDArray[np.float32]) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(array), requires_grad=False)
