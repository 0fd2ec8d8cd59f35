"""Calibration for 8 bits: the ranges of what goes into each product, measured once for a prepared model."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
from safetensors.numpy import load, save

from shoal_workers.encoding.engines import INT8_VERSION
from shoal_workers.encoding.engines.compile_cache import load_or_make
from shoal_workers.encoding.engines.int8 import Range, find_products
from shoal_workers.encoding.packing import Packing
from shoal_workers.encoding.tokenizer import Tokenizer
from shoal_workers.model.model import GRAPH, Model

#: The headlines that come with Shoal.
HEADLINES = Path(__file__).parents[2] / "sample" / "headlines.csv"

#: First characters of the scripts, and how many of each.
SCRIPTS, SCRIPT_SIZE = (*range(0x20, 0x3100, 0x100), *range(0x4E00, 0xD7A0, 0x1000)), 0x100


def load_ranges(folder: Path, threads: int) -> list[Range]:
    """Return the ranges for a prepared model, measured now unless its folder has them already."""

    def make() -> bytes:
        return _pack(_measure(folder, threads))

    try:
        packed = load_or_make(_path(folder), make)
    except OSError:
        packed = make()
    return _unpack(packed)


def _path(folder: Path) -> Path:
    state = (folder / GRAPH).stat()
    return folder / "cache" / f"ranges-{INT8_VERSION}-{state.st_size}-{state.st_mtime_ns}"


def texts() -> list[str]:
    """Return texts of many kinds: headlines, paragraphs and words of them, and characters of every script."""
    with HEADLINES.open(encoding="utf-8", newline="") as file:
        headlines = [row["headline"] for row in csv.DictReader(file)]
    paragraphs = [". ".join(headlines[n : n + 15]) for n in range(0, len(headlines), 100)]
    words = " ".join(headlines[::50]).split()[::10]
    return ["", *words, *headlines[::16], *paragraphs, *map(_script, SCRIPTS)]


def _script(first: int) -> str:
    """Return the characters from `first` on, in words of 1 to 7 characters."""
    characters = "".join(map(chr, range(first, first + SCRIPT_SIZE)))
    starts = [n * (n - 1) // 2 % SCRIPT_SIZE for n in range(SCRIPT_SIZE)]
    return " ".join(characters[start : start + 1 + n % 7] for n, start in enumerate(starts[:48]))


def _measure(folder: Path, threads: int) -> list[Range]:
    """Compute the texts in f32, one after the other, and return the range of what goes into each product."""
    core, model = ov.Core(), Model.open(folder)
    graph = core.read_model(folder / GRAPH)
    measured = ov.Model([product.activations for product in find_products(graph)], graph.get_parameters(), "measured")
    compiled = core.compile_model(
        measured, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    )
    request = compiled.create_infer_request()
    found: list[list[Range]] = [[] for _ in compiled.outputs]
    for tokens in Tokenizer(folder / "tokenizer.json", model.max_tokens).encode(texts()):
        request.infer(list(_row(tokens.ids)))
        for n, ranges in enumerate(found):
            activations = request.get_output_tensor(n).data
            rows = activations.reshape(-1, activations.shape[-1])
            ranges.append(Range(rows.min(axis=0), rows.max(axis=0), rows.mean(axis=0)))
    return [_join(ranges) for ranges in found]


def _row(ids: Sequence[int]) -> Packing:
    length = len(ids)
    positions = np.arange(length, dtype=np.int32)[None]
    return Packing(np.array([ids], np.int32), positions, np.zeros((1, 1, length, length), np.float32))


def _join(ranges: Sequence[Range]) -> Range:
    """Return the range over all texts, each of which has the same weight in the mean."""
    low, high, mean = (np.stack(arrays) for arrays in zip(*ranges, strict=True))
    return Range(low.min(axis=0), high.max(axis=0), mean.mean(axis=0))


def _pack(ranges: Sequence[Range]) -> bytes:
    tensors = {f"{n}.{name}": array for n, found in enumerate(ranges) for name, array in found._asdict().items()}
    packed: bytes = save(tensors)
    return packed


def _unpack(packed: bytes) -> list[Range]:
    tensors = load(packed)
    count = len(tensors) // len(Range._fields)
    return [Range(*(tensors[f"{n}.{name}"] for name in Range._fields)) for n in range(count)]
