"""The forward pass over packed rows as an OpenVINO graph, made of a `Transformer` and read back as one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from shoal.errors import ModelMismatch
from shoal_workers.model.transformer import Array, Layer, Linear, Norm, Transformer

_FUNCTIONS: dict[str, Callable[[ov.Node], ov.Node]] = {
    "gelu": lambda x: ops.gelu(x, "erf"),
    "gelu_tanh": lambda x: ops.gelu(x, "tanh"),
    "relu": ops.relu,
    "silu": lambda x: ops.swish(x),
    "tanh": ops.tanh,
}

#: Where the graph has numbers that are no weights, and their names.
_NUMBERS = "transformer"
_NAMES = ("num_layers", "num_heads", "num_positions", "eps", "activation", "head")


def build(transformer: Transformer) -> ov.Model:
    """Return the graph from the arrays of a `Packing` to token vectors or scores `[rows, length, dimension]`."""
    ids = ops.parameter([-1, -1], np.int32, "ids")
    positions = ops.parameter([-1, -1], np.int32, "positions")
    bias = ops.parameter([-1, 1, -1, -1], np.float32, "bias")
    tokens = ops.add(_rows(transformer.words, ids, "words"), _rows(transformer.positions, positions, "positions"))
    tokens = _norm(tokens, transformer.norm, transformer.eps, "norm")
    attention_bias: ov.Node = bias
    if transformer.relative_bias is not None:
        attention_bias = ops.add(bias, _relative(transformer.relative_bias, positions, transformer.num_positions))
    for n, layer in enumerate(transformer.layers):
        tokens = _layer(tokens, attention_bias, layer, transformer, f"layers.{n}.")
    if transformer.head is not None:
        dense, function, out = transformer.head
        tokens = _linear(_FUNCTIONS[function](_linear(tokens, dense, "head.dense")), out, "head.out")
    graph = ov.Model([tokens], [ids, positions, bias], "model")
    for name, value in _numbers(transformer).items():
        graph.set_rt_info(value, [_NUMBERS, name])
    return graph


def stored_transformer(path: Path) -> Transformer:
    """Return the model of a stored graph that `build` made, with weights in f16 or f32. Raises ModelMismatch."""
    graph = ov.Core().read_model(path)
    arrays = {
        node.friendly_name.removesuffix("_compressed"): node.data
        for node in graph.get_ops()
        if node.get_type_name() == "Constant"
    }
    try:
        return _transformer({name: graph.get_rt_info([_NUMBERS, name]).astype(str) for name in _NAMES}, arrays)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ModelMismatch(f"{path} does not name its weights ({error!s:.200}): prepare the model again") from error


def _numbers(transformer: Transformer) -> dict[str, str]:
    head = transformer.head[1] if transformer.head else ""
    values = (len(transformer.layers), transformer.num_heads, transformer.num_positions, transformer.eps)
    return dict(zip(_NAMES, [*map(repr, values), transformer.activation, head], strict=True))


def _transformer(numbers: Mapping[str, str], arrays: Mapping[str, Any]) -> Transformer:
    def linear(name: str) -> Linear:
        return Linear(arrays[f"{name}.weights"], arrays[f"{name}.bias"].ravel())

    def norm(name: str) -> Norm:
        return Norm(arrays[f"{name}.scale"].ravel(), arrays[f"{name}.shift"].ravel())

    def layer(prefix: str) -> Layer:
        return Layer(
            qkv=linear(f"{prefix}qkv"),
            attention_out=linear(f"{prefix}attention_out"),
            attention_norm=norm(f"{prefix}attention_norm"),
            up=linear(f"{prefix}up"),
            down=linear(f"{prefix}down"),
            output_norm=norm(f"{prefix}output_norm"),
        )

    head = numbers["head"]
    return Transformer(
        words=arrays["words"],
        positions=arrays["positions"],
        num_positions=int(numbers["num_positions"]),
        norm=norm("norm"),
        layers=tuple(layer(f"layers.{n}.") for n in range(int(numbers["num_layers"]))),
        num_heads=int(numbers["num_heads"]),
        eps=float(numbers["eps"]),
        activation=numbers["activation"],
        relative_bias=arrays.get("relative_bias"),
        head=(linear("head.dense"), head, linear("head.out")) if head else None,
    )


def _layer(tokens: ov.Node, bias: ov.Node, layer: Layer, transformer: Transformer, prefix: str) -> ov.Node:
    width = layer.attention_out.bias.size
    shape = [0, 0, 3, transformer.num_heads, width // transformer.num_heads]
    heads = ops.reshape(_linear(tokens, layer.qkv, f"{prefix}qkv"), shape, special_zero=True)
    heads = ops.transpose(heads, [2, 0, 3, 1, 4])
    query, key, value = (ops.gather(heads, np.int64(n), np.int64(0)) for n in range(3))
    scores = ops.add(ops.matmul(query, key, False, True), bias)
    attended = ops.matmul(ops.softmax(scores, -1), value, False, False)
    attended = ops.reshape(ops.transpose(attended, [0, 2, 1, 3]), [0, 0, width], special_zero=True)
    tokens = ops.add(tokens, _linear(attended, layer.attention_out, f"{prefix}attention_out"))
    tokens = _norm(tokens, layer.attention_norm, transformer.eps, f"{prefix}attention_norm")
    inner = _FUNCTIONS[transformer.activation](_linear(tokens, layer.up, f"{prefix}up"))
    tokens = ops.add(tokens, _linear(inner, layer.down, f"{prefix}down"))
    return _norm(tokens, layer.output_norm, transformer.eps, f"{prefix}output_norm")


def _relative(table: Array, positions: ov.Node, num_positions: int) -> ov.Node:
    """Return the bias between the tokens of each row: `[rows, num_heads, length, length]`."""
    distance = ops.subtract(ops.unsqueeze(positions, 1), ops.unsqueeze(positions, 2))
    rows = _rows(table, ops.add(distance, np.int32(num_positions - 1)), "relative_bias")
    return ops.transpose(rows, [0, 3, 1, 2])


def _linear(tokens: ov.Node, linear: Linear, name: str) -> ov.Node:
    product = ops.matmul(tokens, _constant(linear.weights, f"{name}.weights"), False, True)
    return ops.add(product, _constant(linear.bias, f"{name}.bias"))


def _norm(tokens: ov.Node, norm: Norm, eps: float, name: str) -> ov.Node:
    centred = ops.mvn(tokens, [-1], True, eps, "inside_sqrt")
    scaled = ops.multiply(centred, _constant(norm.scale, f"{name}.scale"))
    return ops.add(scaled, _constant(norm.shift, f"{name}.shift"))


def _rows(table: Array, numbers: ov.Node, name: str) -> ov.Node:
    return ops.gather(_constant(table, name), numbers, np.int64(0))


def _constant(array: Array, name: str) -> ov.Node:
    constant = ops.constant(np.ascontiguousarray(array), shared_memory=True)
    constant.friendly_name = name
    return constant
