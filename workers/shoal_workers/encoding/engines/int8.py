"""Products in 8 bits, with a scale for each output's weights and a fixed step for each input."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

Array = NDArray[np.float32]

#: Lets OpenVINO multiply in 8 bits where no ranges are known: activations are then rounded as they come, every 384
#: numbers of a token with a scale of their own. Measured: a third slower than with ranges.
PROPERTIES = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 384}

#: How far the step of an input follows its own range: at 0 all inputs have the step of the widest one, at 1 each has
#: its own, and inputs of unusual texts, which leave the ranges, are cut off. Measured over headlines and 388 languages.
OWN_RANGE = 0.25


class Range(NamedTuple):
    """The lowest, the highest and the mean activation of each input of a product, `[inputs]` each."""

    low: Array
    high: Array
    mean: Array


class Product(NamedTuple):
    """A product of activations with weights `[outputs, inputs]`."""

    node: ov.Node
    weights: Array

    @property
    def activations(self) -> ov.Output:
        """The activations that are multiplied with the weights, `[..., inputs]`."""
        return self.node.input_value(0)


def find_products(graph: ov.Model) -> Iterator[Product]:
    """Yield the products with weights; embeddings are none.

    A layer with one output, such as the last one of a reranker, is left out: OpenVINO 2026.4 computes it wrong in 8
    bits.
    """
    for node in graph.get_ordered_ops():
        attributes = node.get_attributes() if node.get_type_name() == "MatMul" else {}
        if not attributes.get("transpose_b") or attributes["transpose_a"]:
            continue
        source = node.input_value(1).get_node()
        if source.get_type_name() == "Convert":
            source = source.input_value(0).get_node()
        if source.get_type_name() == "Constant" and len(source.shape) == 2 and source.shape[0] > 1:
            yield Product(node, source.data.astype(np.float32))


def compress(graph: ov.Model) -> None:
    """Round the weights of every product to 8 bits; activations are rounded as they come, or not at all."""
    for node, weights in find_products(graph):
        rounded, scales = _round(weights)
        product = ops.multiply(ops.convert(ops.constant(rounded), "f16"), ops.constant(scales.astype(np.float16)))
        node.input(1).replace_source_output(ops.convert(product, "f32").output(0))


def quantise(graph: ov.Model, ranges: Sequence[Range]) -> None:
    """Round the weights and the activations of every product to 8 bits; `ranges` come from `find_products`."""
    for product, found in zip(find_products(graph), ranges, strict=True):
        _quantise(product, found)


def _quantise(product: Product, found: Range) -> None:
    """Multiply activations, from 0 to 255, and weights as whole numbers, without the mean error of rounding."""
    node, weights = product
    low, width = _intervals(found)
    rounded, scales = _round(weights * width)
    multiples = ops.multiply(ops.subtract(product.activations, ops.constant(low)), ops.constant(1 / width))
    zero, one = ops.constant(np.float32(0)), ops.constant(np.float32(1))
    bits = ops.fake_quantize(multiples, zero, one, zero, one, 256)
    offset = weights @ found.mean - (rounded * scales) @ ((found.mean - low) / width)
    node.input(0).replace_source_output(bits.output(0))
    node.input(1).replace_source_output(
        ops.multiply(ops.convert(ops.constant(rounded), "f32"), ops.constant(scales)).output(0)
    )
    readers = node.output(0).get_target_inputs()
    shifted = ops.add(node, ops.constant(offset))
    for reader in readers:
        reader.replace_source_output(shifted.output(0))


def _intervals(found: Range) -> tuple[Array, Array]:
    """Return the low end and the width of the interval of each input, in which it has 256 values."""
    own = np.maximum(found.high - found.low, np.float32(1e-6))
    width = own**OWN_RANGE * own.max() ** (1 - OWN_RANGE)
    return (found.high + found.low - width) / 2, width


def _round(weights: Array) -> tuple[NDArray[np.int8], Array]:
    """Return the weights as whole numbers, and the scale of each output, `[outputs, 1]`."""
    scales = np.maximum(np.abs(weights).max(axis=1, keepdims=True) / np.float32(127), np.float32(1e-12))
    return np.rint(weights / scales).astype(np.int8), scales
