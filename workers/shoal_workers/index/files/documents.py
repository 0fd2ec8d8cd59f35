"""The documents of a version: a line of JSON each, where it begins, and which rows have an id."""

import json
import mmap
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.contract import wire
from shoal.errors import IndexCorrupt, InvalidText
from shoal_workers.index.files.array_file import open_array
from shoal_workers.index.files.hash_table import HashTable, hash_of
from shoal_workers.index.files.manifest import DOCUMENTS, IDS, OFFSETS

#: `json.dumps` would make an encoder for each object, which takes as long as reading it.
_to_json = json.JSONEncoder(ensure_ascii=False).encode


class Documents:
    """The documents of the `count` rows of a version, mapped into memory. Reading is thread-safe.

    `has_ids` tells whether the version has a file of its ids: those of older layouts have none, and their documents are
    read for that. Raises IndexCorrupt for files that no build wrote.
    """

    def __init__(self, folder: Path, count: int, has_ids: bool):
        self._folder = folder
        self._count = count
        self._offsets = open_array(folder / OFFSETS, np.int64, (count + 1,))
        self._lines = _map(folder / DOCUMENTS)
        self._ids = HashTable.open(folder, IDS, count) if has_ids else None
        offsets, end = self._offsets, len(self._lines)
        if offsets[0] != 0 or offsets[-1] != end or not (offsets[1:] > offsets[:-1]).all():
            raise IndexCorrupt(
                f"{folder / OFFSETS} does not say where the documents in {DOCUMENTS} begin: build the index again"
            )

    def document(self, row: int) -> dict[str, Any]:
        """Return the document of a row: its `id`, `text` and other fields.

        Raises IndexCorrupt for a document that no build wrote, and that could not be sent.
        """
        line = self._lines[self._offsets[row] : self._offsets[row + 1]]
        try:
            document = json.loads(line.decode())
            wire.pack(document)
            if not _is_document(document, line):
                raise ValueError("it has no id or no text, or is nested too deeply")
        except (ValueError, OverflowError, RecursionError, InvalidText) as error:
            raise IndexCorrupt(
                f"document {row} in {self._folder / DOCUMENTS} cannot be read ({type(error).__name__}): "
                "build the index again"
            ) from error
        return dict(document)

    def rows_of(self, ids: Collection[str]) -> NDArray[np.int64]:
        """Return the rows of all documents that have one of these ids, in ascending order.

        Raises IndexCorrupt for ids that no build wrote.
        """
        if self._ids is None:
            self._ids = self._read_ids()
        rows = self._ids.rows_of(b"".join(map(hash_of, ids)))
        if len(rows) and rows[-1] >= self._count:
            raise IndexCorrupt(f"{self._folder / IDS} has rows that {DOCUMENTS} has not: build the index again")
        return rows

    def _read_ids(self) -> HashTable:
        try:
            starts = self._offsets.tolist()
            lines = (self._lines[start:end] for start, end in pairwise(starts))
            return HashTable.of(b"".join(hash_of(json.loads(line)["id"]) for line in lines))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise IndexCorrupt(
                f"an id in {self._folder / DOCUMENTS} cannot be read ({type(error).__name__}): build the index again"
            ) from error


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise IndexCorrupt(f"{path} cannot be read ({error!s:.200}): build the index again") from error


def _is_document(value: Any, line: bytes) -> bool:
    if not isinstance(value, dict) or type(value.get("id")) is not str or type(value.get("text")) is not str:
        return False
    return line.count(b"[") + line.count(b"{") <= wire.MAX_DEPTH or wire.is_json(value)


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
