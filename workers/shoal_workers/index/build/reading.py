"""The first steps of a build: documents are copied from the source, changes are folded in, and columns are written."""

import json
from array import array
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.changes.change import is_position
from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument, InvalidRequest
from shoal.records.document import BadRow, BadRows, Document
from shoal.records.source import Source
from shoal_workers.index.build.chunks import Cutter
from shoal_workers.index.build.scratch import BuildState
from shoal_workers.index.files.array_file import save_array
from shoal_workers.index.files.columns import save_columns
from shoal_workers.index.files.documents import HASH_BYTES, HashTable, hash_of, keep_lines, read_lines, to_line
from shoal_workers.index.files.field_values import DocumentFields
from shoal_workers.index.files.manifest import BAD_ROWS, CHANGES, DOCUMENTS, HASHES, IDS, OFFSETS

#: Progress is reported after this many rows, or after cutting this many characters into chunks.
REPORT_EVERY, REPORT_CHARS = 4_096, 2**19


def read_source(state: BuildState, source: Source, skips_bad: bool, cutter: Cutter | None) -> None:
    """Copy the documents of the source into the folder of a build, fold in the changes, and count rows and documents.

    With `skips_bad`, bad rows and documents with the id of an earlier one are left out and listed in a file; without
    it, the first of them raises BadDocument. Each row takes about 70 bytes of memory. Raises BadDocument too if no
    document is left, and InvalidRequest for a changed id that may also be a document's position in the source.
    """
    with BadRows(state.folder / BAD_ROWS) as bad:
        reading = _Reading(state, source, bad, skips_bad, cutter)
        reading.copy()
        is_kept = reading.leave_repeated_out()
    reading.fold(is_kept)
    state.count = len(reading.sizes)
    if not state.count:
        raise BadDocument(
            f"{source.label.path}: all its documents are deleted from the index; at least one is needed: add one "
            "to the index, or forget the deletions (--drop-changes-before TIME)"
        )
    save_array(state.folder / OFFSETS, reading.offsets())
    HashTable.of(reading.hashes).save(state.folder, HASHES)
    ids = HashTable.of(reading.id_hashes)
    ids.save(state.folder, IDS)
    state.num_documents = int((ids.first_rows() == np.arange(state.count)).sum())


@dataclass(slots=True, eq=False)
class _Reading:
    """The copying of a source's documents. If the build `skips_bad`, bad rows are noted in `bad`.

    For each row, the object keeps the size of the row's line, the number of the document in the source, and the hashes
    of the row's text and id. The rows of one document are consecutive.
    """

    state: BuildState
    source: Source
    bad: BadRows
    skips_bad: bool
    cutter: Cutter | None
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    hashes: bytearray = field(default_factory=bytearray)
    id_hashes: bytearray = field(default_factory=bytearray)

    def copy(self) -> None:
        """Write the documents into a file. Raises BadDocument if there are none."""
        num_chars = 0
        found = self.source.rows(self._report_progress)
        with (self.state.folder / DOCUMENTS).open("wb") as file, closing(found) as rows:
            for number, row in enumerate(rows, 1):
                self.state.num_rows = number
                if isinstance(row, BadRow):
                    self._leave_out(row)
                else:
                    num_chars += len(row.text) if self.cutter else 0
                    try:
                        self._write(file, self.cutter.cut(row) if self.cutter else [row])
                    except BadDocument as error:
                        self._leave_out(BadRow(row.number, f"{self.source.where(row.number, row.id)}: {error}"))
                if number % REPORT_EVERY == 0 or self.source.is_folder or num_chars >= REPORT_CHARS:
                    self._report_progress()
                    num_chars = 0
        if not self.sizes:
            first = f"; the first bad row: {self.bad.first[0]}" if self.bad.first else ""
            raise BadDocument(f"{self.source.label.path}: there are no documents in it; at least one is needed{first}")

    def leave_repeated_out(self) -> NDArray[np.bool_]:
        """Leave out documents with the id of an earlier one; return the rows that are kept, bool `[rows]`."""
        numbers, offsets, at = np.array(self.numbers), self.offsets(), self.source.label.at
        is_kept = np.ones(len(numbers), bool)
        first_numbers = numbers[HashTable.of(self.id_hashes).first_rows()]
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        ends = np.append(begins[1:], len(numbers))
        with (self.state.folder / DOCUMENTS).open("rb") as file:
            for n in np.flatnonzero(first_numbers[begins] != numbers[begins]):
                file.seek(offsets[begins[n]])
                name, number = excerpt(json.loads(file.readline())["id"]), int(numbers[begins[n]])
                reason = f"{at(number)}: {at(int(first_numbers[begins[n]]))} has the id {name} already"
                self._leave_out(BadRow(number, f"{reason}; ids must differ"))
                is_kept[begins[n] : ends[n]] = False
        return is_kept

    def fold(self, is_kept: NDArray[np.bool_]) -> None:
        """Remove rows that are not kept and rows of documents with a change, and append the changed documents."""
        state, path = self.state, self.state.folder / CHANGES
        state.ids_are_positions = self.source.ids_are_positions
        changed = bytearray()
        for change in read_lines(path):
            # In each new source, another document may have this id.
            if state.ids_are_positions and is_position(change["id"]):
                raise InvalidRequest(
                    f"{self.source.label.path} has no column of ids, so documents are numbered, and the index "
                    f"has a change of id {excerpt(change['id'])}, which another document may have now: name a column "
                    "of ids (--id-column), or forget the changes (--drop-changes-before TIME)"
                )
            changed += hash_of(change["id"])
        if changed:
            is_kept &= HashTable.of(self.id_hashes).find_in(HashTable.of(changed)) < 0
        if not is_kept.all():
            keep_lines(self.state.folder / DOCUMENTS, is_kept)
            self.sizes = array("q", np.array(self.sizes)[is_kept].tobytes())
            self.hashes, self.id_hashes = (
                bytearray(np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES)[is_kept].tobytes())
                for hashes in (self.hashes, self.id_hashes)
            )
        with (self.state.folder / DOCUMENTS).open("ab") as file:
            for change in read_lines(path):
                if change["document"] is not None:
                    document = Document(change["id"], change["document"].pop("text"), change["document"])
                    self._write(file, self.cutter.recut(document) if self.cutter else [document])

    def offsets(self) -> NDArray[np.int64]:
        """Return the byte offset of each line, and the end of the last line; int64 `[count + 1]`."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes, dtype=np.int64)])

    def _write(self, file: Any, parts: list[Document]) -> None:
        """Write a line for a whole document, or for each of its chunks."""
        for part in parts:
            file.write(line := to_line({"id": part.id, "text": part.text, **part.fields}))
            self.sizes.append(len(line))
            self.numbers.append(part.number)
            self.hashes += hash_of(part.text)
            self.id_hashes += hash_of(part.id)

    def _leave_out(self, row: BadRow) -> None:
        if not self.skips_bad:
            raise BadDocument(f"{row.reason}; --skip-bad (on_bad: skip) leaves bad rows out")
        self.bad.add(row)
        self.state.num_bad, self.state.first_bad = self.bad.num, self.bad.first

    def _report_progress(self) -> None:
        self.state.report("reading", self.source.fraction)


def write_columns(state: BuildState, kinds: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Write the columns of the documents in the folder of a build; return the `kind` of each field.

    Fields that `kinds` does not name get the kind that all their values have. The distinct strings of all fields, and 8
    to 12 bytes for each value, are kept in memory. Raises BadDocument for a value that is not of the given kind.
    """
    fields, folder = DocumentFields(kinds), state.folder
    for number, document in enumerate(read_lines(folder / DOCUMENTS), 1):
        fields.add(document)
        if number % REPORT_EVERY == 0:
            state.report("reading fields", number / state.count)
    found = {name: {"kind": kind} for name, kind in fields.kinds_found().items()}
    try:
        save_columns(folder, fields.columns())
    except BadDocument as error:
        raise BadDocument(f"{folder.parent}: {error.message}") from error
    return found
