"""The forward pass over packed rows as an OpenVINO graph, made of a `Transformer` and read back as one."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from shoal.errors import ModelMismatch
from shoal_workers.model.attention_settings import Attention
from shoal_workers.model.transformer import Array, Distances, Layer, Linear, Norm, ScoreHead, Transformer

_FUNCTIONS: dict[str, Callable[[ov.Node], ov.Node]] = {
    "gelu": lambda x: ops.gelu(x, "erf"),
    "gelu_tanh": lambda x: ops.gelu(x, "tanh"),
    "relu": ops.relu,
    "silu": lambda x: ops.swish(x),
    "tanh": ops.tanh,
}

#: The graphs of heads by output.
Graphs = dict[str, ov.Model]

#: Added to the attention scores of tokens that are too far away.
MASKED = -1e9

#: The section of the graph's metadata for values that are not weights, and the names of these values.
_NUMBERS = "transformer"
_NAMES = ("num_layers", "num_heads", "num_positions", "eps", "activation", "head")


def build_graph(transformer: Transformer) -> ov.Model:
    """Return the graph from the arrays of a `Packing` to token vectors or scores, `[rows, length, dimension]`."""
    ids = ops.parameter([-1, -1], np.int32, "ids")
    positions = ops.parameter([-1, -1], np.int32, "positions")
    bias = ops.parameter([-1, 1, -1, -1], np.float32, "bias")
    tokens = _rows(transformer.words, ids, "words")
    if len(transformer.positions):
        tokens = ops.add(tokens, _rows(transformer.positions, positions, "positions"))
    tokens = _norm(tokens, transformer.norm, transformer.eps, "norm")
    attention_bias: ov.Node = bias
    if transformer.relative_bias is not None:
        relative = _of_distances(transformer.relative_bias, positions, transformer.num_positions, "relative_bias")
        attention_bias = ops.add(bias, ops.transpose(relative, [0, 3, 1, 2]))
    attend = cache(partial(_attending, transformer, positions, attention_bias))  # shared by layers with equal attention
    for n, layer in enumerate(transformer.layers):
        tokens = _layer(tokens, attend(layer.attention), layer, transformer, f"layers.{n}.")
    tokens = _norm(tokens, transformer.final_norm, transformer.eps, "final_norm")
    if transformer.dense is not None:
        tokens = _linear(tokens, transformer.dense, "dense")
    if transformer.head is not None:
        tokens = _scores(tokens, bias, transformer.head, transformer.eps)
    graph = ov.Model([tokens], [ids, positions, bias], "model")
    head = transformer.head.activation if transformer.head else ""
    numbers = (len(transformer.layers), transformer.num_heads, transformer.num_positions, transformer.eps)
    for name, value in zip(_NAMES, [*map(repr, numbers), transformer.activation, head], strict=True):
        graph.set_rt_info(value, [_NUMBERS, name])
    return graph


def build_head(layers: ScoreHead | Linear, eps: float) -> ov.Model:
    """Return a head's graph: from token vectors `[groups, tokens, width]`, the largest numbers of each group."""
    first = layers if isinstance(layers, Linear) else layers.dense
    tokens = ops.parameter([-1, -1, first.weights.shape[1]], np.float32, "tokens")
    made = _linear(tokens, layers, "out") if isinstance(layers, Linear) else _scores(tokens, tokens, layers, eps)
    return ov.Model([ops.reduce_max(made, np.array([1]))], [tokens], "head")


@cache
def core() -> ov.Core:
    """Return OpenVINO's core, which lives as long as the process.

    The core gives the thread that makes it a signal stack. When another thread drops the core, that stack is freed, and
    the next signal kills the process.
    """
    return ov.Core()


def stored_transformer(path: Path) -> Transformer:
    """Return the model of a stored graph that has only BERT's blocks, in f16 or f32. Raises ModelMismatch."""
    graph = core().read_model(path)
    arrays = {
        node.friendly_name.removesuffix("_compressed"): node.data
        for node in graph.get_ops()
        if node.get_type_name() == "Constant"
    }
    try:
        return _transformer({name: graph.get_rt_info([_NUMBERS, name]).astype(str) for name in _NAMES}, arrays)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ModelMismatch(f"{path} does not name its weights ({error!s:.200}): prepare the model again") from error


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
        head=ScoreHead(linear("head.dense"), head, linear("head.out")) if head else None,
    )


class _Attending(NamedTuple):
    """The bias of attention scores, and the cosines and sines that rotate queries and keys, if any.

    Layers with the same `Attention` share these nodes.
    """

    bias: ov.Node
    angles: tuple[ov.Node, ov.Node] | None = None
    near: "_NearDistances | None" = None


class _NearDistances(NamedTuple):
    """The part of a layer's `Distances` that rows of this length need, from `first` to `end`.

    `places` `[rows, heads, length, length]` has the index in this part for each pair of tokens of a row.
    """

    places: ov.Node
    first: ov.Node
    end: ov.Node


def _layer(tokens: ov.Node, attending: _Attending, layer: Layer, transformer: Transformer, prefix: str) -> ov.Node:
    eps = transformer.eps
    norms = (layer.attention_norm, layer.attention_end), (layer.output_norm, layer.output_end)
    parts = partial(_attended, attending, layer, transformer, prefix), partial(_network, layer, transformer, prefix)
    for part, (norm, end), name in zip(parts, norms, (f"{prefix}attention", f"{prefix}output"), strict=True):
        if transformer.norms_first:
            made = part(_norm(tokens, norm, eps, f"{name}_norm"))
            tokens = ops.add(tokens, _norm(made, end, eps, f"{name}_end"))
        else:
            tokens = _norm(ops.add(tokens, part(tokens)), norm, eps, f"{name}_norm")
    return tokens


def _attended(attending: _Attending, layer: Layer, transformer: Transformer, prefix: str, tokens: ov.Node) -> ov.Node:
    query, key, value = _heads(_linear(tokens, layer.qkv, f"{prefix}qkv"), transformer)
    query = _norm(query, layer.query_norm, transformer.eps, f"{prefix}query_norm")
    key = _norm(key, layer.key_norm, transformer.eps, f"{prefix}key_norm")
    if attending.angles:
        query, key = (_rotated(heads, *attending.angles) for heads in (query, key))
    if (keys := transformer.num_key_heads) < transformer.num_heads:
        for_query = np.repeat(np.arange(keys), transformer.num_heads // keys)
        key, value = (ops.gather(heads, for_query, np.int64(1)) for heads in (key, value))
    scores = ops.matmul(query, key, False, True)
    if layer.distances and attending.near:
        scores = ops.add(scores, _by_distance(query, key, layer.distances, attending.near, prefix))
    scores = ops.add(scores, attending.bias)
    attended = ops.matmul(ops.softmax(scores, -1), value, False, False)
    outputs = transformer.num_heads * transformer.head_size
    attended = ops.reshape(ops.transpose(attended, [0, 2, 1, 3]), [0, 0, outputs], special_zero=True)
    return _linear(attended, layer.attention_out, f"{prefix}attention_out")


def _by_distance(query: ov.Node, key: ov.Node, distances: Distances, near: _NearDistances, prefix: str) -> ov.Node:
    """Return the part of attention scores `[rows, heads, length, length]` that depends on the distance of tokens."""
    one = np.array([1])
    keys, queries = (
        ops.slice(_constant(array, f"{prefix}distance_{name}"), near.first, near.end, one, one)
        for name, array in distances._asdict().items()
    )
    of_query = ops.gather_elements(ops.matmul(query, keys, False, True), near.places, 3)
    of_key = ops.gather_elements(ops.matmul(queries, key, False, True), near.places, 2)
    return ops.add(of_query, of_key)


def _heads(qkv: ov.Node, transformer: Transformer) -> tuple[ov.Node, ...]:
    """Return query, key and value, `[rows, heads, length, size]` each."""
    queries, keys, size = transformer.num_heads, transformer.num_key_heads, transformer.head_size
    if queries == keys:
        heads = ops.reshape(qkv, [0, 0, 3, queries, size], special_zero=True)
        heads = ops.transpose(heads, [2, 0, 3, 1, 4])
        return tuple(ops.gather(heads, np.int64(n), np.int64(0)) for n in range(3))
    heads = ops.transpose(ops.reshape(qkv, [0, 0, queries + 2 * keys, size], special_zero=True), [0, 2, 1, 3])
    return tuple(ops.variadic_split(heads, np.int64(1), np.array([queries, keys, keys])).outputs())


def _network(layer: Layer, transformer: Transformer, prefix: str, tokens: ov.Node) -> ov.Node:
    inner, function = _linear(tokens, layer.up, f"{prefix}up"), _FUNCTIONS[transformer.activation]
    if transformer.is_gated:
        passed, gate = ops.split(inner, np.int64(-1), 2).outputs()
        return _linear(ops.multiply(function(passed), gate), layer.down, f"{prefix}down")
    return _linear(function(inner), layer.down, f"{prefix}down")


def _attending(transformer: Transformer, positions: ov.Node, bias: ov.Node, attention: Attention) -> _Attending:
    if any(layer.attention.window for layer in transformer.layers):
        # All layers get a window, because OpenVINO 2026.4 makes wrong shapes in bf16 if only some biases are made here.
        window = attention.window or transformer.num_positions
        distance = ops.abs(ops.subtract(ops.unsqueeze(positions, 1), ops.unsqueeze(positions, 2)))
        is_far = ops.greater(ops.unsqueeze(distance, 1), np.int32(window))
        bias = ops.select(is_far, np.float32(MASKED), bias)
    if attention.is_causal:
        comes_after = ops.greater(ops.unsqueeze(positions, 1), ops.unsqueeze(positions, 2))
        bias = ops.select(ops.unsqueeze(comes_after, 1), np.float32(MASKED), bias)
    if distances := transformer.layers[0].distances:
        return _Attending(bias, near=_near(transformer, positions, np.int64(distances.keys.shape[1] // 2)))
    if not attention.theta:
        return _Attending(bias)
    cosines, sines = transformer.angles(attention)
    names = (f"angles.{attention.theta:g}.{what}" for what in ("cosines", "sines"))
    tables = (_rows(table, positions, name) for table, name in zip((cosines, sines), names, strict=True))
    cosine, sine = (ops.unsqueeze(rows, 1) for rows in tables)
    return _Attending(bias, (cosine, sine))


def _near(transformer: Transformer, positions: ov.Node, middle: np.int64) -> _NearDistances:
    """Return the distances in rows of this length; `middle` is the row of the distance 0 in `Distances`."""
    length = ops.gather(ops.shape_of(positions, "i64"), np.array([1]), np.int64(0))
    first = ops.maximum(ops.subtract(middle, length), np.int64(0))
    rows = _of_distances(transformer.distance_rows, positions, transformer.num_positions, "distance_rows")
    places = ops.unsqueeze(ops.subtract(rows, ops.convert(first, "i32")), 1)
    return _NearDistances(ops.tile(places, [1, transformer.num_heads, 1, 1]), first, ops.add(middle, length))


def _rotated(heads: ov.Node, cosines: ov.Node, sines: ov.Node) -> ov.Node:
    """Return queries or keys `[rows, num_heads, length, size]`, rotated by the angles of their positions."""
    half = int(sines.get_output_partial_shape(0)[3].get_length()) // 2
    # OpenVINO fuses these steps if they are written in this form.
    first, second = ops.variadic_split(heads, np.int64(3), np.array([half, half])).outputs()
    crossed = ops.concat([ops.multiply(second, np.float32(-1)), first], -1)
    return ops.add(ops.multiply(heads, cosines), ops.multiply(crossed, sines))


def _scores(tokens: ov.Node, bias: ov.Node, head: ScoreHead, eps: float) -> ov.Node:
    if head.is_of_mean:  # the mean of the tokens of each text
        tokens = ops.matmul(ops.softmax(ops.squeeze(bias, 1), -1), tokens, False, False)
    inner = _FUNCTIONS[head.activation](_linear(tokens, head.dense, "head.dense"))
    return _linear(_norm(inner, head.norm, eps, "head.norm"), head.out, "head.out")


def _of_distances(table: Any, positions: ov.Node, num_positions: int, name: str) -> ov.Node:
    """Return the table's value for each pair of tokens of a row, `[rows, length, length, …]`."""
    distance = ops.subtract(ops.unsqueeze(positions, 1), ops.unsqueeze(positions, 2))
    return _rows(table, ops.add(distance, np.int32(num_positions - 1)), name)


def _linear(tokens: ov.Node, linear: Linear, name: str) -> ov.Node:
    product = ops.matmul(tokens, _constant(linear.weights, f"{name}.weights"), False, True)
    return ops.add(product, _constant(linear.bias, f"{name}.bias"))


def _norm(tokens: ov.Node, norm: Norm, eps: float, name: str) -> ov.Node:
    if not norm.scale.size:
        return tokens
    if not norm.shift.size:
        square = ops.reduce_mean(ops.power(tokens, np.float32(2)), np.array([-1]), keep_dims=True)
        one = ops.divide(np.float32(1), ops.sqrt(ops.add(square, np.float32(eps))))
        return ops.multiply(ops.multiply(tokens, one), _constant(norm.scale, f"{name}.scale"))
    centred = ops.mvn(tokens, [-1], True, eps, "inside_sqrt")
    scaled = ops.multiply(centred, _constant(norm.scale, f"{name}.scale"))
    return ops.add(scaled, _constant(norm.shift, f"{name}.shift"))


def _rows(table: Array, numbers: ov.Node, name: str) -> ov.Node:
    return ops.gather(_constant(table, name), numbers, np.int64(0))


def _constant(array: Array, name: str) -> ov.Node:
    constant = ops.constant(np.ascontiguousarray(array), shared_memory=True)
    constant.friendly_name = name
    return constant
