"""The forward pass over packed rows as an OpenVINO graph, made directly of a `Transformer`."""

from collections.abc import Callable

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from shoal_workers.model.transformer import Array, Layer, Linear, Norm, Transformer

_FUNCTIONS: dict[str, Callable[[ov.Node], ov.Node]] = {
    "gelu": lambda x: ops.gelu(x, "erf"),
    "gelu_tanh": lambda x: ops.gelu(x, "tanh"),
    "relu": ops.relu,
    "silu": lambda x: ops.swish(x),
    "tanh": ops.tanh,
}


def build(transformer: Transformer) -> ov.Model:
    """Return the graph: its inputs are those of a `Packing`, its output the token vectors.

    The vectors are float32 `[rows, length, dimension]`; a model with a head has its scores in their place. The graph
    may refer to the memory of the weights.
    """
    ids = ops.parameter([-1, -1], np.int32, "ids")
    positions = ops.parameter([-1, -1], np.int32, "positions")
    bias = ops.parameter([-1, 1, -1, -1], np.float32, "bias")
    tokens = ops.add(_rows(transformer.words, ids), _rows(transformer.positions, positions))
    tokens = _norm(tokens, transformer.norm, transformer.eps)
    attention_bias: ov.Node = bias
    if transformer.relative_bias is not None:
        attention_bias = ops.add(bias, _relative(transformer.relative_bias, positions, transformer.num_positions))
    for layer in transformer.layers:
        tokens = _layer(tokens, attention_bias, layer, transformer)
    if transformer.head is not None:
        dense, function, out = transformer.head
        tokens = _linear(_FUNCTIONS[function](_linear(tokens, dense)), out)
    return ov.Model([tokens], [ids, positions, bias], "model")


def _layer(tokens: ov.Node, bias: ov.Node, layer: Layer, transformer: Transformer) -> ov.Node:
    width = layer.attention_out.bias.size
    shape = [0, 0, 3, transformer.num_heads, width // transformer.num_heads]
    heads = ops.reshape(_linear(tokens, layer.qkv), shape, special_zero=True)
    heads = ops.transpose(heads, [2, 0, 3, 1, 4])
    query, key, value = (ops.gather(heads, np.int64(n), np.int64(0)) for n in range(3))
    scores = ops.add(ops.matmul(query, key, False, True), bias)
    attended = ops.matmul(ops.softmax(scores, -1), value, False, False)
    attended = ops.reshape(ops.transpose(attended, [0, 2, 1, 3]), [0, 0, width], special_zero=True)
    tokens = _norm(ops.add(tokens, _linear(attended, layer.attention_out)), layer.attention_norm, transformer.eps)
    inner = _FUNCTIONS[transformer.activation](_linear(tokens, layer.up))
    return _norm(ops.add(tokens, _linear(inner, layer.down)), layer.output_norm, transformer.eps)


def _relative(table: Array, positions: ov.Node, num_positions: int) -> ov.Node:
    """Return the bias between the tokens of each row: `[rows, num_heads, length, length]`."""
    distance = ops.subtract(ops.unsqueeze(positions, 1), ops.unsqueeze(positions, 2))
    return ops.transpose(_rows(table, ops.add(distance, np.int32(num_positions - 1))), [0, 3, 1, 2])


def _linear(tokens: ov.Node, linear: Linear) -> ov.Node:
    return ops.add(ops.matmul(tokens, _constant(linear.weights), False, True), _constant(linear.bias))


def _norm(tokens: ov.Node, norm: Norm, eps: float) -> ov.Node:
    centred = ops.mvn(tokens, [-1], True, eps, "inside_sqrt")
    return ops.add(ops.multiply(centred, _constant(norm.scale)), _constant(norm.shift))


def _rows(table: Array, numbers: ov.Node) -> ov.Node:
    return ops.gather(_constant(table), numbers, np.int64(0))


def _constant(array: Array) -> ov.Node:
    return ops.constant(np.ascontiguousarray(array), shared_memory=True)
