"""Documents with vectors for tests of searches, changes of the documents, and index versions that contain them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from changes import unit_vectors
from index_versions import write_version
from numpy.typing import NDArray

from shoal.changes.change import Change
from shoal.records.document import Document
from shoal_workers.index.index import Index

Vectors = NDArray[np.float32]

DIMENSION = 12


def fields_of(n: int) -> dict[str, Any]:
    """Return the fields of a document: its number, and for most documents a group."""
    return {"n": n} | ({"group": n % 5} if n % 3 else {}) | ({"group": None} if n % 21 == 0 else {})


class Made(NamedTuple):
    """Documents in their order, with their vectors."""

    documents: list[Document]
    vectors: list[Vectors]

    def add(self, document: Document, vector: Vectors) -> None:
        """Add a document at the end, in place of all documents with its id."""
        self.delete(document.id)
        self.documents.append(document)
        self.vectors.append(vector)

    def delete(self, document_id: str) -> None:
        """Delete all documents with this id."""
        kept = [n for n, document in enumerate(self.documents) if document.id != document_id]
        self.documents[:], self.vectors[:] = [self.documents[n] for n in kept], [self.vectors[n] for n in kept]

    def change(self, added: Sequence[int], ids: Sequence[str], deleted: Sequence[str], pool: Vectors) -> Change:
        """Make a change, apply the change to these documents, and return it."""
        new = [Document(ids[n], f"text {n}", fields_of(n)) for n in added]
        for one in deleted:
            self.delete(one)
        for document, n in zip(new, added, strict=True):
            self.add(document, pool[n])
        return Change(tuple(new), pool[list(added)].reshape(len(new), pool.shape[1]), tuple(deleted), "d", 0.0)


def open_made(folder: Path, made: Made, **manifest: Any) -> Index:
    """Write a version of these documents and open it."""
    write_version(folder, made.documents, np.stack(made.vectors), **manifest)
    return Index.open_version(folder)


def apply(index: Index, changes: Iterable[Change], position: str = "1-1") -> None:
    """Apply changes to an opened version."""
    index.live = index.live.after(changes, position, index.documents.rows_of)


def made_of(count: int, vectors: Vectors, num_ids: int | None = None) -> Made:
    """Return documents whose ids repeat after `num_ids`."""
    documents = [Document(str(n % (num_ids or count)), f"text {n}", fields_of(n)) for n in range(count)]
    return Made(documents, list(vectors[:count]))


def near_ties(count: int, seed: int) -> Vectors:
    """Return vectors, many of which are equal or differ only in their last bits."""
    few = unit_vectors(4, DIMENSION, seed)
    vectors = few[np.random.default_rng(seed).integers(len(few), size=count)]
    vectors[::3, 0] = np.nextafter(vectors[::3, 0], np.float32(2))
    return vectors
