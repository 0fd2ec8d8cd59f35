"""An index: documents and their vectors in a folder of immutable versions, which workers map into memory."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.changes.change_log import START
from shoal.contract.excerpt import excerpt
from shoal.contract.vectors import SparseVector
from shoal.errors import IndexCorrupt, IndexMismatch
from shoal.index_folder import CURRENT, read_current
from shoal.operations import Search
from shoal_workers.index.files.array_file import open_array
from shoal_workers.index.files.checksums import FileCheck
from shoal_workers.index.files.columns import Columns
from shoal_workers.index.files.documents import Documents
from shoal_workers.index.files.field_kinds import by_kind
from shoal_workers.index.files.manifest import QUANTISED, VECTORS, Manifest
from shoal_workers.index.lexical.lexical_index import LexicalIndex
from shoal_workers.index.ranked_search import RankedSearch
from shoal_workers.index.search.fields import Fields
from shoal_workers.index.search.live_documents import LiveDocuments
from shoal_workers.index.vectors.exact_search import ONE_THREAD, ExactSearch, SearchThreads, merged
from shoal_workers.index.vectors.quantisation import QuantisedVectors
from shoal_workers.index.vectors.token_vectors import TokenVectors
from shoal_workers.index.vectors.upper_bounds import SharedProducts
from shoal_workers.model.model import Model

#: Allowed names of versions, and of indexes inside a folder of indexes. No such name leads out of its folder.
FOLDER_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


class Index:
    """One opened version of an index. Reading is thread-safe; large searches are divided among `threads`.

    `vectors` is float32 `[count, dimension]`, normalised and read-only. `files` compares the version's files with their
    checksums. `live` has the changes since the version was built. Each search reads `live` once, because `live` is
    replaced as a whole. `change_fault` says why some changes are missing from `live`; it is empty if no changes are
    missing. The log of changes was read up to the position `followed_to`. If `needs_all_changes`, all changes are
    applied anew the next time. `columns` contain the fields of the `documents`.
    """

    change_fault, followed_to, needs_all_changes = "", START, False

    #: True if the words of a query get weights from the model.
    has_learned_words = False

    def __init__(self, folder: Path, manifest: Manifest, files: FileCheck, threads: SearchThreads = ONE_THREAD):
        self.folder = folder
        self.manifest = manifest
        self.files = files
        count, dimension = manifest.count, manifest.dimension
        self.vectors = open_array(folder / VECTORS, np.float32, (count, dimension))
        quantised = QuantisedVectors.open(folder, count, dimension, manifest.quantised_width)
        self.exact_search = ExactSearch(self.vectors, quantised, threads)
        self.documents = Documents(folder, count)
        self.columns = Columns.open(folder, count)
        self._converted = {name: kind for name, kind in self.columns.kinds.items() if kind in ("number", "boolean")}
        self.lexical = LexicalIndex.open(folder, count)
        self.has_learned_words = self.lexical.is_learned
        self.token_vectors = TokenVectors.open(folder, manifest)
        self.live = self.unchanged()
        self._fields: tuple[LiveDocuments, Fields | None] = (self.live, None)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the current version of the index in `folder`, after comparing its files with their checksums.

        Raises IndexNotFound, IndexCorrupt, and OSError for a large file that cannot be read.
        """
        index = cls.open_version(current_version(folder))
        index.files.check_rest()
        return index

    @classmethod
    def open_version(cls, version: Path, threads: SearchThreads = ONE_THREAD) -> Self:
        """Open the version in a folder. The caller still has to call `files.check_rest` for its large files.

        Raises IndexCorrupt.
        """
        return cls(version, *checked_files(version), threads)

    def warm_up(self) -> None:
        """Read the files that the first search would otherwise wait for."""
        self.exact_search.warm_up()

    @property
    def count(self) -> int:
        """The number of documents that can be found."""
        live = self.live
        return self.manifest.count - len(live.hidden_rows) + len(live.ids)

    @property
    def default_mode(self) -> str:
        """The mode of a search that names none: lexical in an index of words alone."""
        return "dense" if self.manifest.dimension else "lexical"

    @property
    def group_field(self) -> str:
        """The field that groups hits if a search does not name one; empty for none."""
        return "document" if self.manifest.chunk_tokens else ""

    def unchanged(self) -> LiveDocuments:
        """Return the `live` documents of a version without changes since its build."""
        return LiveDocuments.none(self.manifest.changes_through, self.manifest.dimension, self.lexical)

    def search(self, queries: NDArray[np.float32], k: int) -> list[list[dict[str, Any]]]:
        """Return the `k` documents most similar to each normalised vector in `[queries, dimension]`, best first.

        The search is exact for any number of documents. Documents with equal scores are in the order of the source;
        documents that were added since the build come after them, in the order in which they were added. Raises
        IndexCorrupt for files that no build wrote.
        """
        live = self.live
        with self._naming_corruption():
            found = self.exact_search.top_k(queries, k, live.hidden_rows)
        if live.ids:
            found = merged(found, live.top_k(queries, k), self.manifest.count, k)
        answers = []
        for rows, scores in zip(found.rows.tolist(), found.scores.tolist(), strict=True):
            hits = []
            for row, score in zip(rows, scores, strict=True):
                document = self.document_of(row, live)
                hits.append({"id": document.pop("id"), "score": score, **document})
            answers.append(hits)
        return answers

    def find(
        self,
        job: Search,
        vectors: NDArray[np.float32],
        going_on: Callable[[], object] = lambda: None,
        shared: SharedProducts | None = None,
        sparse: Sequence[SparseVector] = (),
    ) -> RankedSearch:
        """Run a search with options. `RankedSearch` describes the arguments and the errors."""
        with self._naming_corruption():
            return RankedSearch(self, job, vectors, going_on, shared, sparse)

    def fields_at(self, live: LiveDocuments) -> Fields:
        """Return the fields of the version's documents and of the added documents in `live`."""
        known, fields = self._fields
        if fields is None or known is not live:  # two threads may do this at once, with equal results
            fields = Fields.of(self.columns, self.manifest.count, live)
            self._fields = live, fields
        return fields

    @contextmanager
    def _naming_corruption(self) -> Iterator[None]:
        try:
            yield
        except IndexError as error:  # if the codes belong to other vectors, too few bounds reach the score
            raise IndexCorrupt(
                f"{self.folder / QUANTISED} does not belong to {VECTORS}: build the index again"
            ) from error

    def document_of(self, row: int, live: LiveDocuments) -> dict[str, Any]:
        """Return the document of a row; rows of added documents follow the rows of the version."""
        place = row - self.manifest.count
        document = self.documents.document(row) if place < 0 else live.document(place)
        for name, kind in self._converted.items():
            if name in document:
                document[name] = by_kind(kind, document[name])
        return document

    def vectors_at(self, rows: Sequence[int], live: LiveDocuments) -> NDArray[np.float32]:
        """Return the vectors of some rows; rows of added documents follow the rows of the version."""
        places = [row - self.manifest.count for row in rows]
        found = [self.vectors[place] if place < 0 else live.vectors[place] for place in places]
        return np.array(found, np.float32).reshape(-1, self.manifest.dimension)


def checked_files(version: Path) -> tuple[Manifest, FileCheck]:
    """Return the manifest of the version in a folder, and the check that its small files have passed.

    Raises IndexCorrupt.
    """
    manifest = Manifest.read(version)
    for name in manifest.checksums:
        if not (version / name).resolve().is_relative_to(version.parent.resolve()):
            raise IndexCorrupt(f"{version / name} leads out of {version.parent}: build the index again")
    files = FileCheck(version, manifest.checksums)
    files.check(only_small=True)
    return manifest, files


def check_model(version: Path, manifest: Manifest, model: Model) -> None:
    """Raise IndexMismatch unless the version in a folder was built with exactly this model."""
    if manifest.digest != model.digest:
        raise IndexMismatch(
            f"{version} was built with {manifest.model} ({manifest.digest[:12]}…), but this worker runs {model.name} "
            f"({model.digest[:12]}…): build it again, or set SHOAL_MODEL to that model"
        )


def current_version(folder: Path) -> Path:
    """Return the folder of the version that `current` names. Raises IndexNotFound or IndexCorrupt."""
    version = read_current(folder).decode(errors="replace").strip()
    if not FOLDER_NAME.fullmatch(version):
        raise IndexCorrupt(
            f"{folder / CURRENT} names {excerpt(version)}, which is not a version: build the index again"
        )
    return folder / version
