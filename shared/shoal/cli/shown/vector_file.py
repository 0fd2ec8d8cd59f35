"""Files of vectors, in the format that the name ends with."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest

Vectors = Iterable[NDArray[np.float32]]


def _save_npy(path: Path, vectors: Vectors) -> int:
    rows = _stack(vectors)
    with path.open("wb") as file:
        np.save(file, rows)
    return len(rows)


def _save_safetensors(path: Path, vectors: Vectors) -> int:
    from safetensors.numpy import save_file

    rows = _stack(vectors)
    save_file({"vectors": rows}, path)
    return len(rows)


def _save_jsonl(path: Path, vectors: Vectors) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for count, vector in enumerate(vectors, 1):  # noqa: B007
            file.write(json.dumps(vector.tolist()) + "\n")
    return count


_FORMATS: dict[str, Callable[[Path, Vectors], int]] = {
    ".safetensors": _save_safetensors,
    ".npy": _save_npy,
    ".jsonl": _save_jsonl,
}


def is_folder(out: str) -> bool:
    """Return True if `out` names a folder: one that exists, or a name without an ending or with a slash at its end."""
    return out.endswith("/") or Path(out).is_dir() or not Path(out).suffix


def check_path(path: Path) -> Path:
    """Return `path`; raise InvalidRequest unless its format is known and its folder exists."""
    if path.suffix not in _FORMATS:
        raise InvalidRequest(
            f"{path} ends with {excerpt(path.suffix)}: name a file that ends with {', '.join(_FORMATS)}, or a "
            f"folder with a slash at its end, as {path}/"
        )
    if not path.parent.is_dir():
        raise InvalidRequest(f"there is no folder {path.parent} to write {path.name} in: make it first")
    return path


def save(path: Path, vectors: Vectors) -> int:
    """Write the vectors as rows of `[texts, dimension]` in order; return their number."""
    return _FORMATS[check_path(path).suffix](path, vectors)


def _stack(vectors: Vectors) -> NDArray[np.float32]:
    rows = list(vectors)
    return np.stack(rows) if rows else np.empty((0, 0), np.float32)
