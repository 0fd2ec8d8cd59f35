"""The first step of a build: documents are copied from the source, and rows that cannot be indexed are found."""

import json
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.errors import BadDocument
from shoal.excerpt import excerpt
from shoal.long_task import Report, TaskProgress
from shoal.records.bad_rows import BadRows
from shoal.records.document import BadRow, Document
from shoal.records.record import Place
from shoal.records.source import Source
from shoal_workers.index.array_file import save_array
from shoal_workers.index.hash_table import HASH_BYTES, HashTable, hash_of
from shoal_workers.index.manifest import BAD_ROWS, DOCUMENTS, OFFSETS
from shoal_workers.index.scratch import BuildState, sync_files

#: Rows read from one report of progress to the next.
REPORT_EVERY = 4_096

#: `json.dumps` would make an encoder for each document, which takes as long as reading it.
_to_json = json.JSONEncoder(ensure_ascii=False).encode


class _Copied:
    """Documents that were copied: the ends of their lines in the file, their numbers in the source, and hashes."""

    def __init__(self) -> None:
        self.ends = array("q", [0])
        self.numbers = array("q")
        self.hashes = bytearray()
        self.id_hashes = bytearray()

    def add(self, document: Document, line: bytes) -> None:
        """Note a document that was copied as a line."""
        self.ends.append(self.ends[-1] + len(line))
        self.numbers.append(document.number)
        self.hashes += hash_of(document.text)
        self.id_hashes += hash_of(document.id)


def read_source(folder: Path, state: BuildState, source: Source, skips_bad: bool, report: Report) -> None:
    """Copy the documents of the source into the folder of a build, and note in its state how many there are.

    With `skips_bad`, bad rows and documents with the id of an earlier one are left out and listed in a file. Memory
    grows by some 70 bytes a document. Raises BadDocument for the first of them otherwise, and if no document is left.
    """
    copied = _Copied()
    with BadRows(folder / BAD_ROWS) as bad:
        with (folder / DOCUMENTS).open("wb") as file:
            for state.num_rows, row in enumerate(source.rows(), 1):
                if isinstance(row, Document):
                    file.write(line := _line(row))
                    copied.add(row, line)
                else:
                    _leave_out(row, bad, skips_bad)
                if state.num_rows % REPORT_EVERY == 0:
                    report(TaskProgress(state.num_rows, bad.num, bad.first, source.fraction, "reading"))
        repeated = array("q")
        for n, row in _repeated_ids(folder, copied, source.place):
            _leave_out(row, bad, skips_bad)
            repeated.append(n)
        ends, hashes = _without(folder, copied, np.array(repeated))
        state.num_bad, state.first_bad = bad.num, bad.first
    state.count = len(ends) - 1
    if not state.count:
        raise BadDocument(f"{source.place.path}: there are no documents in it; at least one is needed")
    save_array(folder / OFFSETS, ends)
    HashTable.of(hashes).save(folder)
    sync_files(folder)  # a state that counts documents is a promise that they are there, also after a power failure
    state.save(folder)


def _leave_out(row: BadRow, bad: BadRows, skips_bad: bool) -> None:
    if not skips_bad:
        raise BadDocument(row.reason)
    bad.add(row)


def _repeated_ids(folder: Path, copied: _Copied, place: Place) -> Iterator[tuple[int, BadRow]]:
    """Yield the documents with the id of an earlier one, each with the reason to leave it out."""
    first_rows = HashTable.of(copied.id_hashes).first_rows()
    with (folder / DOCUMENTS).open("rb") as file:
        for n in map(int, np.flatnonzero(first_rows != np.arange(len(first_rows)))):
            file.seek(copied.ends[n])
            name = excerpt(json.loads(file.readline())["id"])
            number, first = copied.numbers[n], copied.numbers[int(first_rows[n])]
            reason = f"{place.at(number)}: the id {name} is already that of {place.at(first)}; ids must differ"
            yield n, BadRow(number, reason)


def _without(folder: Path, copied: _Copied, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], bytes | bytearray]:
    """Take rows out of the documents that were copied, and return the ends and the hashes of the others."""
    ends = np.array(copied.ends)
    if not len(rows):
        return ends, copied.hashes
    is_kept = np.ones(len(ends) - 1, bool)
    is_kept[rows] = False
    scratch = folder / f"{DOCUMENTS}.kept"
    with (folder / DOCUMENTS).open("rb") as old, scratch.open("wb") as new:
        new.writelines(line for line, kept in zip(old, is_kept, strict=True) if kept)
    scratch.replace(folder / DOCUMENTS)
    hashes = np.frombuffer(copied.hashes, np.uint8).reshape(-1, HASH_BYTES)[is_kept]
    return np.concatenate([ends[:1], np.cumsum(np.diff(ends)[is_kept])]), hashes.tobytes()


def _line(document: Document) -> bytes:
    return f"{_to_json({'id': document.id, 'text': document.text, **document.fields})}\n".encode()
