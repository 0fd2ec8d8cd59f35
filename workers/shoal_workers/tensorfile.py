"""Safetensors files that are written piece by piece and mapped into memory: the library would copy them whole."""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shoal.errors import IndexCorrupt

#: The library's names of number formats.
_NAMES = {"float32": "F32", "float64": "F64", "int8": "I8", "int64": "I64"}


def header(tensors: Mapping[str, tuple[DTypeLike, tuple[int, ...]]]) -> bytes:
    """What stands before the numbers of tensors of these formats and shapes, which follow in the same order.

    The format is a length of eight bytes, a JSON map of names and places, padded with spaces, then the numbers.
    """
    places, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + prod(shape) * np.dtype(dtype).itemsize
        places[name] = {"dtype": _NAMES[np.dtype(dtype).name], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(places).encode()
    text += b" " * (-len(text) % 64 - 8 + 64)  # the numbers begin at a multiple of 64 bytes
    return len(text).to_bytes(8, "little") + text


def mapped(path: Path, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """A tensor of that format and shape, read-only and not copied; -1 stands for any length.

    Raises IndexCorrupt.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            place = json.loads(file.read(length))[name]
        found, wanted = tuple(place["shape"]), tuple(shape)
        if place["dtype"] != _NAMES[np.dtype(dtype).name] or not _fits(found, wanted):
            raise ValueError(f"{name} is {place['dtype']} {list(found)}, not {np.dtype(dtype).name} {list(wanted)}")
        offset = 8 + length + place["data_offsets"][0]
        return np.asarray(np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=found))
    except (OSError, ValueError, TypeError, KeyError, MemoryError, OverflowError) as error:
        raise IndexCorrupt(f"{path} cannot be read ({error}): build the index again") from error


def _fits(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(found) == len(wanted) and all(b in (a, -1) for a, b in zip(found, wanted, strict=True))
