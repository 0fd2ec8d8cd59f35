"""The first step of a build: documents are copied from the source, and those that were changed since are replaced.

Rows that cannot be indexed are found here, and documents are cut into chunks.
"""

import json
from array import array
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.changes.change import is_position
from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument, InvalidRequest
from shoal.long_task import Report, TaskProgress
from shoal.records.bad_rows import BadRows
from shoal.records.document import BadRow, Document
from shoal.records.folder import ReadFiles
from shoal.records.source import Source
from shoal_workers.index.build.chunks import Cutter
from shoal_workers.index.build.duplicates import word_hash, write_duplicates
from shoal_workers.index.build.scratch import BuildState
from shoal_workers.index.files.array_file import save_array
from shoal_workers.index.files.columns import save_columns
from shoal_workers.index.files.documents import keep_lines, read_lines, to_line
from shoal_workers.index.files.durable_file import sync_files
from shoal_workers.index.files.field_values import DocumentFields
from shoal_workers.index.files.hash_table import HASH_BYTES, HashTable, hash_of
from shoal_workers.index.files.manifest import BAD_ROWS, CHANGES, DOCUMENTS, HASHES, IDS, OFFSETS

#: Rows read from one report of progress to the next, and most characters that are cut into chunks meanwhile.
REPORT_EVERY, REPORT_CHARS = 4_096, 2**19


class Copied:
    """Rows that were copied: the sizes of their lines in the file, their numbers in the source, and hashes.

    The rows of a document follow each other. They have its number, the hash of its id, and that of its words.
    """

    def __init__(self) -> None:
        self.sizes = array("q")
        self.numbers = array("q")
        self.hashes = bytearray()
        self.id_hashes = bytearray()
        self.word_hashes = bytearray()

    def add(self, row: Document, line: bytes, word_hash: bytes) -> None:
        """Note a document, or a chunk of one, that was copied as a line; `word_hash` is that of the whole document."""
        self.sizes.append(len(line))
        self.numbers.append(row.number)
        self.hashes += hash_of(row.text)
        self.id_hashes += hash_of(row.id)
        self.word_hashes += word_hash

    def keep(self, is_kept: NDArray[np.bool_]) -> None:
        """Forget all but these rows."""
        self.sizes = array("q", np.array(self.sizes)[is_kept].tobytes())
        self.numbers = array("q", np.array(self.numbers)[is_kept].tobytes())
        self.hashes, self.id_hashes, self.word_hashes = (
            bytearray(np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES)[is_kept].tobytes())
            for hashes in (self.hashes, self.id_hashes, self.word_hashes)
        )

    def offsets(self) -> NDArray[np.int64]:
        """Return where each line begins, and the end of the last; int64 `[count + 1]`."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes, dtype=np.int64)])


def read_source(
    folder: Path,
    state: BuildState,
    source: Source,
    skips_bad: bool,
    report: Report,
    cutter: Cutter | None = None,
    read_files: ReadFiles | None = None,
) -> None:
    """Copy the documents of the source into the folder of a build, fold in the changes that are there, and count them.

    Files of a folder that are in `read_files`, which is closed, are not read again. With a `cutter`, each chunk of a
    document is a row of the index. With `skips_bad`, bad rows and documents with the id of an earlier one are left out
    and listed in a file. Memory grows by some 90 bytes a row of the index. Raises BadDocument for the first of them
    otherwise, and if no document is left. Raises InvalidRequest for a change of an id that is a position.
    """
    with BadRows(folder / BAD_ROWS) as bad, read_files or nullcontext():
        reading = _Reading(folder, state, source, bad if skips_bad else None, report, cutter)
        reading.copy(read_files)
        is_kept = reading.leave_repeated_out()
        state.num_bad, state.first_bad = bad.num, bad.first
    copied = reading.copied
    state.ids_are_positions = source.ids_are_positions
    if state.ids_are_positions:
        _check_changes(folder, source)
    _fold(folder, copied, is_kept, cutter)
    state.count = len(copied.sizes)
    if not state.count:
        raise BadDocument(
            f"{source.label.path}: all its documents are deleted from the index; at least one is needed: add one "
            "to the index, or forget the deletions (--drop-changes-before TIME)"
        )
    save_array(folder / OFFSETS, copied.offsets())
    HashTable.of(copied.hashes).save(folder, HASHES)
    ids = HashTable.of(copied.id_hashes)
    ids.save(folder, IDS)
    is_first = ids.first_rows() == np.arange(state.count)
    state.num_documents = int(is_first.sum())
    state.num_duplicates = write_duplicates(folder, copied.word_hashes, is_first)
    sync_files(folder)  # a state that counts documents is a promise that they are there, also after a power failure
    state.save(folder)


class _Reading:
    """The copying of a source's documents. Bad rows are noted in `bad`; without it, the first of them is raised."""

    def __init__(
        self,
        folder: Path,
        state: BuildState,
        source: Source,
        bad: BadRows | None,
        report: Report,
        cutter: Cutter | None,
    ):
        self.copied = Copied()
        self._folder = folder
        self._state = state
        self._source = source
        self._bad = bad
        self._report = report
        self._cutter = cutter
        self._num_chars = 0

    def copy(self, read_files: ReadFiles | None) -> None:
        """Write the documents into a file. Raises BadDocument if there are none."""
        found = self._source.rows(self._tell, read_files)
        with (self._folder / DOCUMENTS).open("wb") as file, closing(found) as rows:
            for number, row in enumerate(rows, 1):
                self._state.num_rows = number
                parts = self._parts(row)
                digest = word_hash(row.text) if isinstance(row, Document) else b""
                for part in parts:
                    file.write(line := _line(part))
                    self.copied.add(part, line, digest)
                if number % REPORT_EVERY == 0 or self._source.is_folder or self._num_chars >= REPORT_CHARS:
                    self._tell()
        if not self.copied.sizes:
            raise BadDocument(f"{self._source.label.path}: there are no documents in it; at least one is needed")

    def leave_repeated_out(self) -> NDArray[np.bool_]:
        """Leave out documents with the id of an earlier one; return the rows that are kept, as bool `[rows]`."""
        is_kept = np.ones(len(self.copied.sizes), bool)
        for rows, bad_row in self._repeated():
            self._leave_out(bad_row)
            is_kept[rows] = False
        return is_kept

    def _parts(self, row: Document | BadRow) -> list[Document]:
        """Return the rows of the index that a row of the source gives."""
        if isinstance(row, BadRow):
            return self._leave_out(row)
        if self._cutter is None:
            return [row]
        self._num_chars += len(row.text)
        try:
            return self._cutter.cut(row)
        except BadDocument as error:
            return self._leave_out(BadRow(row.number, f"{self._source.where(row)}: {error}"))

    def _repeated(self) -> Iterator[tuple[slice, BadRow]]:
        """Yield the rows of each document with the id of an earlier one, and the reason to leave it out."""
        numbers, offsets = np.array(self.copied.numbers), self.copied.offsets()
        first_numbers = numbers[HashTable.of(self.copied.id_hashes).first_rows()]
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        ends = np.append(begins[1:], len(numbers))
        with (self._folder / DOCUMENTS).open("rb") as file:
            for n in np.flatnonzero(first_numbers[begins] != numbers[begins]):
                begin, end = int(begins[n]), int(ends[n])
                file.seek(offsets[begin])
                name = excerpt(json.loads(file.readline())["id"])
                number, at = int(numbers[begin]), self._source.label.at
                reason = f"{at(number)}: the id {name} is already that of {at(int(first_numbers[begin]))}"
                yield slice(begin, end), BadRow(number, f"{reason}; ids must differ")

    def _leave_out(self, row: BadRow) -> list[Document]:
        if self._bad is None:
            raise BadDocument(row.reason)
        self._bad.add(row)
        return []

    def _tell(self) -> None:
        """Report how far the copying is."""
        num_bad, first_bad = (self._bad.num, self._bad.first) if self._bad else (0, ())
        self._num_chars = 0
        self._report(TaskProgress(self._state.num_rows, num_bad, first_bad, self._source.fraction, "reading"))


def _check_changes(folder: Path, source: Source) -> None:
    """Raise InvalidRequest for changes whose ids are positions: other documents may have these in each source."""
    for change in read_lines(folder / CHANGES):
        if is_position(change["id"]):
            raise InvalidRequest(
                f"{source.label.path} has no column of ids, so that documents are numbered, and the index has a change "
                f"of id {excerpt(change['id'])}, which may be that of another document now: name a column of ids "
                "(--id-column), or forget the changes (--drop-changes-before TIME)"
            )


def _fold(folder: Path, copied: Copied, is_kept: NDArray[np.bool_], cutter: Cutter | None) -> None:
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
                for part in cutter.recut(document) if cutter else [document]:
                    file.write(line := _line(part))
                    copied.add(part, line, word_hash(document.text))


def _line(document: Document) -> bytes:
    return to_line({"id": document.id, "text": document.text, **document.fields})


def write_columns(
    folder: Path, state: BuildState, kinds: Mapping[str, str], report: Report
) -> dict[str, dict[str, Any]]:
    """Write the columns of the documents in the folder of a build; return the kinds of the fields as they were found.

    `kinds` are those of some fields; the others get the kind that all their values have. Memory grows by the distinct
    strings of all fields, and by 8 to 12 bytes a value. Raises BadDocument for a value of another kind than the one
    given.
    """
    fields = DocumentFields(kinds)
    for number, document in enumerate(read_lines(folder / DOCUMENTS), 1):
        fields.add(document)
        if number % REPORT_EVERY == 0:
            fraction = number / state.count
            report(TaskProgress(state.num_rows, state.num_bad, state.first_bad, fraction, "reading fields"))
    found = fields.kinds_found()
    try:
        save_columns(folder, fields.columns(), fields.num_left_out)
    except BadDocument as error:
        raise BadDocument(f"{folder.parent}: {error.message}") from error
    return found
