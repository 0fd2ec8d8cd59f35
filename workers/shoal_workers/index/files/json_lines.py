"""Files of JSON objects, one a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: `json.dumps` would make an encoder for each object, which takes as long as reading it.
_to_json = json.JSONEncoder(ensure_ascii=False).encode


def to_line(values: dict[str, Any]) -> bytes:
    """Return an object as a line."""
    return f"{_to_json(values)}\n".encode()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file. Raises ValueError for a line that is no JSON."""
    with path.open("rb") as file:
        yield from map(json.loads, file)


def keep_lines(path: Path, is_kept: NDArray[np.bool_]) -> None:
    """Remove the other lines from a file, in one step; `is_kept` is `[lines]`."""
    scratch = path.with_name(f"{path.name}.kept")
    with path.open("rb") as old, scratch.open("wb") as new:
        new.writelines(line for line, kept in zip(old, is_kept, strict=True) if kept)
    scratch.replace(path)
