"""The weights of a model, read from safetensors files, which contain only numbers, no code."""

import hashlib
import json
import math
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from shoal.contract.excerpt import excerpt
from shoal.errors import ModelMismatch, ModelNotFound

#: The file of the weights, and the index that names the files if there are several.
FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"

#: Largest list of tensors in a file, and largest index, in bytes. A tensor needs about 100 bytes.
MAX_HEADER_BYTES = 4 << 20

#: The types of tensors, and the numpy types that read them. numpy has no bf16. Whole numbers are not weights.
_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "I64": "<i8", "I32": "<i4", "BOOL": "?"}
_FLOATS = ("F32", "F16", "BF16", "F64")


def files(folder: Path) -> list[Path]:
    """Return the weights' files: one, or the files that the index names. Raises ModelNotFound or ModelMismatch."""
    if (folder / FILE).is_file():
        return [folder / FILE]
    if not (folder / INDEX).is_file():
        raise ModelNotFound(
            f"{folder} has no .safetensors weights, the only format that Shoal loads: save the model as {FILE}"
        )
    try:
        if (folder / INDEX).stat().st_size > MAX_HEADER_BYTES:
            raise ValueError
        names = set(json.loads((folder / INDEX).read_text("utf-8"))["weight_map"].values())
        found = [folder / Path(name).name for name in sorted(names)]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ModelMismatch(f"{folder / INDEX} does not name the weights' files: fetch the model again") from error
    if missing := [path.name for path in found if not path.is_file()]:
        raise ModelNotFound(f"{folder} lacks the weights' file {missing[0]}: fetch the model again")
    return found


def digest(*folders: Path, others: Iterable[Path] = ()) -> str:
    """Return the SHA-256 of the weights' files and then of other files. Raises the errors of `files`."""
    found = hashlib.sha256()
    for path in chain(*map(files, folders), others):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    return found.hexdigest()


def read(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Return the weights by name, as float32, without whole numbers. Raises ModelNotFound or ModelMismatch."""
    return {name: tensor for path in files(folder) for name, tensor in read_file(path).items()}


def read_file(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return the float tensors of a file by name. Raises ModelMismatch."""
    try:
        return _read(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelMismatch(f"{path} is damaged ({error!s:.200}): fetch the model again") from error


def _read(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return the float tensors of a file. The library checks that tensors fill the file without gaps or overlaps."""
    tensors = {}
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > MAX_HEADER_BYTES:
        raise ModelMismatch(f"{path} is damaged (its list of tensors has {size:,} bytes): fetch the model again")
    with safe_open(path, "numpy") as stored, path.open("rb") as file:
        file.seek(8 + size)
        for name in stored.offset_keys():
            tensor = stored.get_slice(name)
            kind, shape = tensor.get_dtype(), tensor.get_shape()
            if kind not in _TYPES:
                raise ModelMismatch(
                    f"tensor {excerpt(name)} in {path} is of type {kind}: use weights of type {', '.join(_FLOATS)}"
                )
            numbers = np.fromfile(file, _TYPES[kind], math.prod(shape)).reshape(shape)
            if kind not in _FLOATS:
                continue
            if kind == "BF16":
                numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
            with np.errstate(over="ignore"):  # F64 has numbers that are infinite as float32
                numbers = numbers.astype(np.float32, copy=False)
            if not np.isfinite(numbers).all():
                raise ModelMismatch(
                    f"tensor {excerpt(name)} in {path} has numbers that are not finite: fetch the model again"
                )
            tensors[name] = numbers
    return tensors
