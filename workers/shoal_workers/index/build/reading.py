"""The first step of a build: documents are copied from the source, and those that were changed since are replaced.

Rows that cannot be indexed are found here.
"""

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
from shoal_workers.index.build.scratch import BuildState
from shoal_workers.index.files.array_file import save_array
from shoal_workers.index.files.durable_file import sync_files
from shoal_workers.index.files.hash_table import HASH_BYTES, HashTable, hash_of
from shoal_workers.index.files.json_lines import keep_lines, read_lines, to_line
from shoal_workers.index.files.manifest import BAD_ROWS, CHANGES, DOCUMENTS, HASHES, IDS, OFFSETS

#: Rows read from one report of progress to the next.
REPORT_EVERY = 4_096


class _Copied:
    """Documents that were copied: the sizes of their lines in the file, their numbers in the source, and hashes."""

    def __init__(self) -> None:
        self.sizes = array("q")
        self.numbers = array("q")
        self.hashes = bytearray()
        self.id_hashes = bytearray()

    def add(self, document: Document, line: bytes) -> None:
        """Note a document that was copied as a line."""
        self.sizes.append(len(line))
        self.numbers.append(document.number)
        self.hashes += hash_of(document.text)
        self.id_hashes += hash_of(document.id)

    def keep(self, is_kept: NDArray[np.bool_]) -> None:
        """Forget all but the documents of these rows."""
        self.sizes = array("q", np.array(self.sizes)[is_kept].tobytes())
        self.numbers = array("q", np.array(self.numbers)[is_kept].tobytes())
        self.hashes, self.id_hashes = (
            bytearray(np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES)[is_kept].tobytes())
            for hashes in (self.hashes, self.id_hashes)
        )

    def offsets(self) -> NDArray[np.int64]:
        """Return where each line begins, and the end of the last; int64 `[count + 1]`."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes, dtype=np.int64)])


def read_source(folder: Path, state: BuildState, source: Source, skips_bad: bool, report: Report) -> None:
    """Copy the documents of the source into the folder of a build, fold in the changes that are there, and count them.

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
        if not copied.sizes:
            raise BadDocument(f"{source.place.path}: there are no documents in it; at least one is needed")
        is_kept = np.ones(len(copied.sizes), bool)
        for n, row in _repeated_ids(folder, copied, source.place):
            _leave_out(row, bad, skips_bad)
            is_kept[n] = False
        state.num_bad, state.first_bad = bad.num, bad.first
    _fold(folder, copied, is_kept)
    state.count = len(copied.sizes)
    if not state.count:
        raise BadDocument(
            f"{source.place.path}: all its documents are deleted from the index; at least one is needed: add one "
            "to the index, or forget the deletions (--drop-changes-before TIME)"
        )
    save_array(folder / OFFSETS, copied.offsets())
    HashTable.of(copied.hashes).save(folder, HASHES)
    HashTable.of(copied.id_hashes).save(folder, IDS)
    sync_files(folder)  # a state that counts documents is a promise that they are there, also after a power failure
    state.save(folder)


def _fold(folder: Path, copied: _Copied, is_kept: NDArray[np.bool_]) -> None:
    """Take the documents that were changed since out of those that were copied, and add the ones that were added.

    Documents that are not to be kept are taken out with them.
    """
    changed = b"".join(hash_of(change["id"]) for change in read_lines(folder / CHANGES))
    if changed:
        is_kept &= HashTable.of(copied.id_hashes).find_in(HashTable.of(changed)) < 0
    if not is_kept.all():
        keep_lines(folder / DOCUMENTS, is_kept)
        copied.keep(is_kept)
    with (folder / DOCUMENTS).open("ab") as file:
        for change in read_lines(folder / CHANGES):
            if change["document"] is not None:
                document = Document(change["id"], change["document"].pop("text"), change["document"])
                file.write(line := _line(document))
                copied.add(document, line)


def _leave_out(row: BadRow, bad: BadRows, skips_bad: bool) -> None:
    if not skips_bad:
        raise BadDocument(row.reason)
    bad.add(row)


def _repeated_ids(folder: Path, copied: _Copied, place: Place) -> Iterator[tuple[int, BadRow]]:
    """Yield the documents with the id of an earlier one, each with the reason to leave it out."""
    first_rows, offsets = HashTable.of(copied.id_hashes).first_rows(), copied.offsets()
    with (folder / DOCUMENTS).open("rb") as file:
        for n in map(int, np.flatnonzero(first_rows != np.arange(len(first_rows)))):
            file.seek(offsets[n])
            name = excerpt(json.loads(file.readline())["id"])
            number, first = copied.numbers[n], copied.numbers[int(first_rows[n])]
            reason = f"{place.at(number)}: the id {name} is already that of {place.at(first)}; ids must differ"
            yield n, BadRow(number, reason)


def _line(document: Document) -> bytes:
    return to_line({"id": document.id, "text": document.text, **document.fields})
