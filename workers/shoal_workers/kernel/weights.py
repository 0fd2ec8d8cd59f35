"""The weights of a model in the kernel's layout: panels in the order of their use."""

import ctypes
from collections.abc import Iterator
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal_workers.model.transformer import Layer, Linear, Transformer

Array = NDArray[np.float32]

#: The names of activation functions, in the order of the kernel's enumeration.
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "tanh")

#: Widths of a head that the kernel supports.
HEAD_WIDTHS = (32, 64)

#: Least and greatest number of inputs of a panel, and the step between such numbers. Inputs of a panel share a scale.
#: With a step of 16, some models in bf16 would not fit the tiles of AMX, and take twice as long as with openvino.
MIN_GROUP, MAX_GROUP, GROUP_STEP = 64, 512, 32

PANEL_OUTPUTS = 48

#: The kinds of numbers in panels, in the order of the kernel's enumeration.
NUMBERS = ("int8", "bf16", "f32")


class Shape(ctypes.Structure):
    """The sizes of a model, with the fields of the kernel's struct `Shape`."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("width", "heads", "layers", "inner", "group", "num_words")),
        *((name, ctypes.c_int32) for name in ("num_positions", "max_tokens", "activation", "number")),
        ("eps", ctypes.c_float),
    )


class KernelWeights(NamedTuple):
    """The sizes and weights of a model, with `panels` and `scales` of all products in the order of their use.

    `words` is f16 `[num_words, width]` and `positions` f32 `[num_positions, width]`. `norms` is f32
    `[(2 + 4 layers) x width]`: scale and shift of each norm, in the order of their use.
    """

    shape: Shape
    words: NDArray[np.float16]
    positions: Array
    norms: Array
    panels: bytearray
    scales: bytearray


def find_unsupported(transformer: Transformer) -> str:
    """Return the sizes that the kernel does not support, in words, or "". The model must have only BERT's blocks."""
    width, inner = _sizes(transformer)
    head_width = width // transformer.num_heads
    if head_width not in HEAD_WIDTHS:
        return f"heads of {head_width} numbers"
    return "" if _group(width, inner) else f"{width} and {inner} numbers a token"


def arrange(transformer: Transformer, max_tokens: int, number: str) -> KernelWeights:
    """Return the weights of a supported model in the kernel's layout; raise ValueError for arrays that do not fit.

    `number` is one of `NUMBERS`.
    """
    width, inner = _sizes(transformer)
    group = _group(width, inner)
    norms = [transformer.norm]
    panels, scales = bytearray(), bytearray()
    for layer in transformer.layers:
        norms += [layer.attention_norm, layer.output_norm]
        for product in _products(layer, width, inner, group):
            for numbers, own_scales in _panels(product, group, number):
                panels += numbers
                scales += own_scales
    words, positions = transformer.words.astype(np.float16, copy=False), _float32(transformer.positions)
    scales_and_shifts = np.concatenate([_float32(array) for norm in norms for array in norm])
    if (
        words.shape[1:] != (width,)
        or positions.shape[1:] != (width,)
        or len(scales_and_shifts) != 2 * width * len(norms)
    ):
        raise ValueError("embeddings and norms are of different widths")
    if not np.isfinite(words).all():
        raise ValueError("the vector of a word has a number that 16 bits cannot hold")
    shape = Shape(
        *(width, transformer.num_heads, len(transformer.layers), inner, group, len(words), len(positions)),
        *(max_tokens, ACTIVATIONS.index(transformer.activation), NUMBERS.index(number), transformer.eps),
    )
    return KernelWeights(shape, words, positions, scales_and_shifts, panels, scales)


def _sizes(transformer: Transformer) -> tuple[int, int]:
    """Return the width of a token's vector, and the width of the feed-forward network."""
    first = transformer.layers[0]
    return len(first.attention_out.bias), len(first.up.bias)


def _group(width: int, inner: int) -> int:
    """Return the number of inputs of a panel, which divides both widths; 0 if there is no such number."""
    sizes = range(MIN_GROUP, MAX_GROUP + 1, GROUP_STEP)
    return max((size for size in sizes if gcd(width, inner) % size == 0), default=0)


def _products(layer: Layer, width: int, inner: int, group: int) -> Iterator[Linear]:
    """Yield the products of a layer in the order of their use, with the feed-forward network cut into groups.

    Queries are scaled so that the softmax can use powers of 2 instead of e.
    """
    factor = np.ones((3 * width, 1), np.float32)
    factor[:width] = 1 / np.log(2)
    qkv = _checked(layer.qkv, 3 * width, width)
    yield Linear(qkv.weights * factor, qkv.bias * factor[:, 0])
    yield _checked(layer.attention_out, width, width)
    up, down = _checked(layer.up, inner, width), _checked(layer.down, width, inner)
    for n in range(0, inner, group):
        part = slice(n, n + group)
        yield Linear(up.weights[part], up.bias[part])
        yield Linear(down.weights[:, part], down.bias if n == 0 else np.zeros_like(down.bias))


def _checked(linear: Linear, outputs: int, inputs: int) -> Linear:
    weights, bias = (_float32(array) for array in linear)
    if weights.shape != (outputs, inputs) or bias.shape != (outputs,):
        raise ValueError(f"weights are {list(weights.shape)}, and not {[outputs, inputs]}")
    if not np.isfinite(weights).all() or not np.isfinite(bias).all():
        raise ValueError("weights have numbers that are not finite")
    return Linear(weights, bias)


def _panels(product: Linear, group: int, number: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the bytes of each panel, which has 48 outputs of a product: its weights, and the numbers of its outputs.

    The weights are 4 bytes of each output in turn. An output has three numbers: its scale, its bias, and the scale
    times the sum of its rounded weights.
    """
    outputs, inputs = product.weights.shape
    missing = -outputs % PANEL_OUTPUTS
    weights = np.pad(product.weights, ((0, missing), (0, 0)))
    for start in range(0, inputs, group):
        part = weights[:, start : start + group]
        scale = np.maximum(np.abs(part).max(axis=1), np.float32(1e-12)) / np.float32(127)
        bias = np.pad(product.bias, (0, missing)) if start == 0 else np.zeros(len(weights), np.float32)
        sums, numbers = np.zeros_like(scale), _bf16(part) if number == "bf16" else part
        if number == "int8":
            rounded = np.rint(part / scale[:, None])
            sums, numbers = scale * rounded.sum(axis=1), (rounded + 128).astype(np.uint8)
        step = 4 // numbers.itemsize
        for n in range(0, len(weights), PANEL_OUTPUTS):
            rows = slice(n, n + PANEL_OUTPUTS)
            data = numbers[rows].reshape(PANEL_OUTPUTS, group // step, step).transpose(1, 0, 2)
            yield data.tobytes(), np.concatenate([scale[rows], bias[rows], sums[rows]]).astype(np.float32).tobytes()


def _float32(array: NDArray[np.floating]) -> Array:
    return np.ascontiguousarray(array, np.float32)


def _bf16(numbers: Array) -> NDArray[np.uint16]:
    """Return the numbers rounded to bf16: the upper 16 bits of each."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
