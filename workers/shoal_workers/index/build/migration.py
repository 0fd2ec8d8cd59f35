"""Migration: the documents of a version are the source of the next one, whose vectors are of another model."""

import json
from collections.abc import Callable, Generator, Iterable
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from shoal.contract.options import Options
from shoal.errors import IndexCorrupt
from shoal.long_task import Report, TaskProgress
from shoal.records.document import Document
from shoal.records.folder import ReadFiles
from shoal.records.source import Source
from shoal_workers.index.build.chunks import CHUNK_FIELDS
from shoal_workers.index.build.reading import REPORT_EVERY
from shoal_workers.index.files.columns import read_kinds
from shoal_workers.index.files.documents import read_lines
from shoal_workers.index.files.field_values import DocumentFields
from shoal_workers.index.files.manifest import DOCUMENTS, FIELDS, LEXICAL, Manifest, checksum


class VersionDocuments(Source):
    """The documents of the version in `folder`, and how they were indexed; chunks are put together again.

    The constructor raises IndexCorrupt for a version that cannot be read.
    """

    def __init__(self, folder: Path):
        self.manifest = Manifest.read(folder)
        if checksum(folder / DOCUMENTS) != self.manifest.checksums[DOCUMENTS]:
            raise IndexCorrupt(f"{folder / DOCUMENTS} is not what was built: publish another version, or build again")
        super().__init__(folder / DOCUMENTS, "text", "id")
        self.name = self.manifest.source
        self.ids_are_positions = self.manifest.ids_are_positions
        self._folder = folder

    def rows(
        self, waiting: Callable[[], object] = lambda: None, read_files: ReadFiles | None = None
    ) -> Generator[Document, None, None]:
        """Yield the documents in their order."""
        number, num_documents = 0, self.manifest.num_documents or self.manifest.count
        self._part = lambda: number / num_documents
        lines = groupby(read_lines(self._folder / DOCUMENTS), itemgetter("id"))
        for number, (document_id, rows) in enumerate(lines, 1):
            fields = _joined(rows) if self.manifest.chunk_tokens else next(rows)
            del fields["id"]
            yield Document(document_id, fields.pop("text"), fields, number)

    def chunks(self) -> Options:
        """Return the options by which the documents were cut into chunks."""
        sizes = self.manifest.chunk_tokens or None, self.manifest.chunk_overlap
        return Options(chunk_tokens=sizes[0], chunk_overlap=sizes[1])

    def language(self) -> str | None:
        """Return the language of the words; None for a version that knows no words."""
        if LEXICAL not in self.manifest.files:
            return None
        return str(json.loads((self._folder / LEXICAL).read_text("utf-8"))["language"])

    def given_kinds(self, report: Report) -> dict[str, str]:
        """Return the kinds of fields that their values alone do not have, by their names."""
        if FIELDS not in self.manifest.files:
            return {}
        found = DocumentFields({})
        for number, document in enumerate(read_lines(self._folder / DOCUMENTS), 1):
            found.add(document)
            if number % REPORT_EVERY == 0:
                report(TaskProgress(fraction=number / self.manifest.count, step="reading fields"))
        by_values = {name: field["kind"] for name, field in found.kinds_found().items()}
        kinds = read_kinds(self._folder)
        return {name: kind for name, kind in kinds.items() if kind != by_values.get(name)}


def _joined(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the document of these chunks, with spaces for the white space around them, which they do not have."""
    pieces: list[str] = []
    fields, end = {}, 0
    for fields in chunks:
        pieces += [" " * (fields["start"] - end), fields["text"][max(0, end - fields["start"]) :]]
        end = fields["stop"]
    return {name: value for name, value in fields.items() if name not in CHUNK_FIELDS} | {"text": "".join(pieces)}
