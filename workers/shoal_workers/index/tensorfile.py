"""Safetensors files that are written piece by piece and mapped into memory: the library would copy them whole."""

import json
from collections.abc import Mapping, Sequence
from math import prod
from os import SEEK_END
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shoal.errors import IndexCorrupt

#: The library's names of number formats.
_NAMES = {"float32": "F32", "float64": "F64", "int8": "I8", "int64": "I64"}

#: Longest header that is read; those of an index have some hundred bytes.
MAX_HEADER_BYTES = 2**20


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
    dtype = np.dtype(dtype)
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"its header has {length:,} bytes")
            place = json.loads(file.read(length))[name]
            size_bytes = file.seek(0, SEEK_END) - 8 - length
        found, (start, end) = place["shape"], place["data_offsets"]
        if place["dtype"] != _NAMES[dtype.name] or not _fits(found, shape):
            raise ValueError(f"{name} is {place['dtype']!r:.20} {found!r:.80}, not {dtype.name} {list(shape)}")
        if not 0 <= start <= end <= size_bytes or end - start != prod(found) * dtype.itemsize:
            raise ValueError(f"{name} is not where it should be")
        return np.asarray(np.memmap(path, dtype=dtype, mode="r", offset=8 + length + start, shape=tuple(found)))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise IndexCorrupt(f"{path} cannot be read ({error!s:.200}): build the index again") from error


def _fits(found: Sequence[Any], wanted: Sequence[int]) -> bool:
    return len(found) == len(wanted) and all(
        type(has) is int and has >= 0 and size in (has, -1) for has, size in zip(found, wanted, strict=True)
    )
