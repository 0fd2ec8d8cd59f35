"""Migration to another model: the documents of the current version are the source of the next version."""

import json
from collections.abc import Callable, Generator, Iterable
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from shoal.errors import InvalidRequest
from shoal.records.document import Document
from shoal.records.source import Source
from shoal_workers.index.build.chunks import CHUNK_FIELDS
from shoal_workers.index.files.columns import Columns
from shoal_workers.index.files.documents import read_lines
from shoal_workers.index.files.field_values import DocumentFields
from shoal_workers.index.files.manifest import DOCUMENTS, LEXICAL, Manifest


class VersionDocuments(Source):
    """The documents of the version in `folder`, joined from their chunks. Raises IndexCorrupt."""

    def __init__(self, folder: Path):
        self._manifest = Manifest.read(folder)
        self._file = folder / DOCUMENTS
        if self._manifest.engine:
            raise InvalidRequest(f"{folder} has its documents in an engine: build the index from its source")
        self._manifest.check(folder, [DOCUMENTS])
        super().__init__(self._file, "text", "id")
        self.name = self._manifest.source
        self.ids_are_positions = self._manifest.ids_are_positions

    def rows(self, waiting: Callable[[], object] = lambda: None) -> Generator[Document, None, None]:
        """Yield the documents in their order."""
        number, num_documents = 0, self._manifest.num_documents or self._manifest.count
        self._fraction = lambda: number / num_documents
        for number, (document_id, rows) in enumerate(groupby(read_lines(self._file), itemgetter("id")), 1):
            fields = _joined(rows) if self._manifest.chunk_tokens else next(rows)
            yield Document(fields.pop("id", document_id), fields.pop("text"), fields, number)

    def build_arguments(self) -> dict[str, Any]:
        """Return the arguments of a build like this version's: chunk sizes, given kinds, language and token vectors."""
        chunks = {"chunk_tokens": self._manifest.chunk_tokens or None, "chunk_overlap": self._manifest.chunk_overlap}
        found, folder = DocumentFields({}), self._file.parent
        for document in read_lines(self._file):
            found.add(document)
        by_values, kinds = found.kinds_found(), Columns.without_rows(folder).kinds
        given = [f"{name}={kind}" for name, kind in sorted(kinds.items() - by_values.items())]
        language = json.loads((folder / LEXICAL).read_text("utf-8"))["language"]
        has_tokens = bool(self._manifest.token_digest)
        return chunks | {"field_kinds": given, "language": language, "token_vectors": has_tokens}


def _joined(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the document of these chunks. The white space between chunks is not stored, so it is replaced.

    A single character becomes a space, and several become line feeds, where the cutter sees the end of a paragraph.
    """
    pieces: list[str] = []
    fields, end = {}, 0
    for fields in chunks:
        gap = fields["start"] - end
        pieces += [("\n" if gap > 1 else " ") * gap, fields["text"][max(0, -gap) :]]
        end = fields["stop"]
    return {name: value for name, value in fields.items() if name not in CHUNK_FIELDS} | {"text": "".join(pieces)}
