"""Matrix products in 8 bits, with a scale for each output's weights and, if ranges are measured, a step per input."""

import csv
import fcntl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops
from safetensors.numpy import load, save

from shoal_workers.encoding.engines import INT8_VERSION
from shoal_workers.encoding.tokenizer import Tokenizer
from shoal_workers.model.graph import core
from shoal_workers.model.model import GRAPH, Model

Array = NDArray[np.float32]

#: The file of sample headlines that comes with Shoal.
HEADLINES = Path(__file__).parents[2] / "sample" / "headlines.csv"

#: The first code point of each script, and the number of its characters that are used.
SCRIPTS, SCRIPT_SIZE = (*range(0x20, 0x3100, 0x100), *range(0x4E00, 0xD7A0, 0x1000)), 0x100

#: With this option, OpenVINO multiplies in 8 bits without measured ranges: it rounds activations at run time, with a
#: scale for each 384 numbers of a token. Measured: a third slower than with ranges.
PROPERTIES = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 384}

#: Influence of an input's own range on its step. At 0, all inputs have the step of the widest input. At 1, the step of
#: each input depends only on its own range; inputs of unusual texts exceed this range and are clipped. Measured with
#: headlines and texts in 388 languages.
OWN_RANGE = 0.25


class Range(NamedTuple):
    """The lowest, highest and mean activation of each input of a product, `[inputs]` each."""

    low: Array
    high: Array
    mean: Array


def find_products(graph: ov.Model) -> Iterator[tuple[ov.Node, Array]]:
    """Yield the node and the weights `[outputs, inputs]` of each product of activations with weights, in order.

    A layer with one output, such as a reranker's last layer, is left out, because OpenVINO 2026.4 computes it wrong in
    8 bits.
    """
    for node in graph.get_ordered_ops():
        attributes = node.get_attributes() if node.get_type_name() == "MatMul" else {}
        if not attributes.get("transpose_b") or attributes["transpose_a"]:
            continue
        source = node.input_value(1).get_node()
        if source.get_type_name() == "Convert":
            source = source.input_value(0).get_node()
        if source.get_type_name() == "Constant" and len(source.shape) == 2 and source.shape[0] > 1:
            yield node, source.data.astype(np.float32)


def compress(graph: ov.Model) -> None:
    """Round the weights of every product to 8 bits. Activations are rounded at run time, or not at all."""
    for node, weights in find_products(graph):
        rounded, scales = _round(weights)
        product = ops.multiply(ops.convert(ops.constant(rounded), "f16"), ops.constant(scales.astype(np.float16)))
        node.input(1).replace_source_output(ops.convert(product, "f32").output(0))


def quantise(graph: ov.Model, ranges: Sequence[Range]) -> None:
    """Replace every product by a product of integers, with activations from 0 to 255; correct the mean rounding error.

    `ranges` are in the order of `find_products`.
    """
    for (node, weights), found in zip(find_products(graph), ranges, strict=True):
        own = np.maximum(found.high - found.low, np.float32(1e-6))
        width = own**OWN_RANGE * own.max() ** (1 - OWN_RANGE)
        low = (found.high + found.low - width) / 2
        rounded, scales = _round(weights * width)
        multiples = ops.multiply(ops.subtract(node.input_value(0), ops.constant(low)), ops.constant(1 / width))
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


def _round(weights: Array) -> tuple[NDArray[np.int8], Array]:
    """Return the weights as whole numbers, and the scale of each output, `[outputs, 1]`."""
    scales = np.maximum(np.abs(weights).max(axis=1, keepdims=True) / np.float32(127), np.float32(1e-12))
    return np.rint(weights / scales).astype(np.int8), scales


# Ranges


def load_ranges(folder: Path, threads: int) -> list[Range]:
    """Return the ranges of a prepared model. One process measures them and writes them into the model's folder."""
    state = (folder / GRAPH).stat()
    path = folder / "cache" / f"ranges-{INT8_VERSION}-{state.st_size}-{state.st_mtime_ns}.safetensors"
    try:
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            with path.with_suffix(".lock").open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists():
                    new, measured = path.with_suffix(".new"), enumerate(_measure(folder, threads))
                    arrays = {f"{n}.{name}": array for n, found in measured for name, array in found._asdict().items()}
                    new.write_bytes(save(arrays))
                    new.replace(path)
        tensors = load(path.read_bytes())
    except OSError:  # the folder cannot be written
        return _measure(folder, threads)
    count = len(tensors) // len(Range._fields)
    return [Range(*(tensors[f"{n}.{name}"] for name in Range._fields)) for n in range(count)]


def texts() -> list[str]:
    """Return texts of many kinds: headlines, paragraphs and words from headlines, and characters of every script."""
    with HEADLINES.open(encoding="utf-8", newline="") as file:
        headlines = [row["headline"] for row in csv.DictReader(file)]
    paragraphs = [". ".join(headlines[n : n + 15]) for n in range(0, len(headlines), 100)]
    words = " ".join(headlines[::50]).split()[::10]
    return ["", *words, *headlines[::16], *paragraphs, *map(_script, SCRIPTS)]


def _script(first: int) -> str:
    """Return the characters of a script, which begins at `first`, in words of 1 to 7 characters."""
    characters = "".join(map(chr, range(first, first + SCRIPT_SIZE)))
    starts = [n * (n - 1) // 2 % SCRIPT_SIZE for n in range(SCRIPT_SIZE)]
    return " ".join(characters[start : start + 1 + n % 7] for n, start in enumerate(starts[:48]))


def _measure(folder: Path, threads: int) -> list[Range]:
    """Encode the texts in f32, one by one, and return the range of the activations of each product."""
    model = Model.open(folder)
    graph = core().read_model(folder / GRAPH)
    inputs = [node.input_value(0) for node, _ in find_products(graph)]
    measured = ov.Model(inputs, graph.get_parameters(), "measured")
    compiled = core().compile_model(
        measured, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    )
    request = compiled.create_infer_request()
    found: list[list[Range]] = [[] for _ in compiled.outputs]
    for tokens in Tokenizer(folder / "tokenizer.json", model.max_tokens).encode(texts()):
        length = len(tokens.ids)
        ids, positions = np.array([tokens.ids], np.int32), np.arange(length, dtype=np.int32)[None]
        request.infer([ids, positions, np.zeros((1, 1, length, length), np.float32)])
        for n, ranges in enumerate(found):
            activations = request.get_output_tensor(n).data
            rows = activations.reshape(-1, activations.shape[-1])
            ranges.append(Range(rows.min(axis=0), rows.max(axis=0), rows.mean(axis=0)))
    return [_join(ranges) for ranges in found]


def _join(ranges: Sequence[Range]) -> Range:
    """Return the range over all texts. Each text has the same weight in the mean."""
    low, high, mean = (np.stack(arrays) for arrays in zip(*ranges, strict=True))
    return Range(low.min(axis=0), high.max(axis=0), mean.mean(axis=0))
