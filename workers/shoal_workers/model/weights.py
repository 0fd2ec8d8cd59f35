"""The weights of a model, read from safetensors files, which hold numbers alone: nothing in them is run."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from shoal.errors import ModelMismatch, ModelNotFound
from shoal.excerpt import excerpt

#: The weights' file, and the file that names the weights' files where there are several.
FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def _from_bf16(data: bytearray) -> NDArray[np.float32]:
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


#: The float types that weights come in, each with the function that makes float32 of its bytes.
_FLOATS: dict[str, Callable[[bytearray], NDArray[Any]]] = {
    "F32": lambda data: np.frombuffer(data, "<f4"),
    "F16": lambda data: np.frombuffer(data, "<f2").astype(np.float32),
    "BF16": _from_bf16,
}


def files(folder: Path) -> list[Path]:
    """Return the files of the weights: one, or those that the index names.

    Raises ModelNotFound for a file that is missing, and ModelMismatch for an index that names something else.
    """
    if (folder / FILE).exists():
        return [folder / FILE]
    if not (folder / INDEX).exists():
        raise ModelNotFound(
            f"{folder} has no .safetensors weights, the only format that Shoal loads: save the model as {FILE}"
        )
    found = [folder / name for name in _indexed(folder / INDEX)]
    if missing := [path.name for path in found if not path.exists()]:
        raise ModelNotFound(f"{folder} lacks the weights' file {missing[0]}: fetch the model again")
    return found


def _indexed(path: Path) -> list[str]:
    try:
        names = sorted(set(json.loads(path.read_text("utf-8"))["weight_map"].values()))
        if names and all(Path(name).name == name and name.endswith(".safetensors") for name in names):
            return names
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        pass
    raise ModelMismatch(f"{path} names no .safetensors files beside it: fetch the model again")


def digest(folder: Path) -> str:
    """Return the SHA-256 of the weights' files, one after the other. Raises what `files` raises."""
    found = hashlib.sha256()
    for path in files(folder):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    return found.hexdigest()


def read(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Return the weights by name, as float32; tensors of whole numbers, which are tables of positions, are left out.

    Raises ModelNotFound, and ModelMismatch for a file that is damaged, a type of number that is not known, numbers
    that are not finite, and a tensor that is there twice.
    """
    tensors: dict[str, NDArray[np.float32]] = {}
    for path in files(folder):
        try:
            stored = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
        except SafetensorError as error:
            raise ModelMismatch(f"{path} is damaged ({error!s:.200}): fetch the model again") from error
        while stored:
            name, tensor = stored.pop()
            if name in tensors:
                raise ModelMismatch(f"{path} has tensor {excerpt(name)} a second time: fetch the model again")
            if tensor["dtype"] not in ("I64", "I32", "BOOL"):
                tensors[name] = _floats(path, name, tensor)
    return tensors


def _floats(path: Path, name: str, tensor: dict[str, Any]) -> NDArray[np.float32]:
    dtype = tensor["dtype"]
    if dtype not in _FLOATS:
        raise ModelMismatch(
            f"tensor {excerpt(name)} in {path} is of type {dtype}: use weights of type {', '.join(_FLOATS)}"
        )
    numbers = _FLOATS[dtype](tensor["data"]).reshape(tensor["shape"])
    if not np.isfinite(numbers).all():
        raise ModelMismatch(f"tensor {excerpt(name)} in {path} has numbers that are not finite: fetch the model again")
    return numbers
