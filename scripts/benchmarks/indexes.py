"""Indexes to search in benchmarks: of real headlines, and large ones made without embedding a million texts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stack import HOME, can_be_served, index_of, model

from benchmarks.plan import say
from benchmarks.texts import Texts
from shoal_workers.index.builder import build
from shoal_workers.index.document import Document
from shoal_workers.index.index import Index
from shoal_workers.model.model import Model

#: Documents in the index of real headlines.
NUM_REAL = 20_000


class Mixtures:
    """Stands where the builder has an encoder: each vector is a random mixture of those of two real headlines.

    So the vectors lie where headlines lie, near each other in groups, and not evenly as random ones would.
    """

    def __init__(self, model: Model, vectors: NDArray[np.float32]):
        self.model = model
        self._vectors = vectors
        self._random = np.random.default_rng(7)

    def prompt(self, *_: object) -> str:
        """No prompt."""
        return ""

    def embed(self, texts: Sequence[str], *_: object) -> NDArray[np.float32]:
        """A normalised vector for each text, whatever it says: float32 `[texts, dimension]`."""
        left, right = self._random.integers(len(self._vectors), size=(2, len(texts)))
        share = self._random.random((len(texts), 1), dtype=np.float32)
        mixed = share * self._vectors[left] + (1 - share) * self._vectors[right]
        return np.asarray(mixed / np.linalg.norm(mixed, axis=1, keepdims=True), np.float32)


class Numbered:
    """Stands where the builder has a file: documents that say that they are made up."""

    path = Path("synthetic: mixtures of the vectors of two headlines each")

    def __init__(self, count: int):
        self.count = count

    def __iter__(self) -> Iterator[Document]:
        return (Document(str(n), f"synthetic document {n}", {}) for n in range(self.count))


def indexes_of(sizes: Sequence[int], texts: Texts) -> dict[str, Path]:
    """An index of each size by its name, built under SHOAL_HOME if it is not there or is another model's."""
    headlines = texts.headlines[:NUM_REAL]
    real = index_of(f"headlines-{len(headlines)}", {str(n): text for n, text in enumerate(headlines)})
    num_real = Index.open(real).manifest.count
    return {f"n{size}": real if size == num_real else _synthetic(size, real) for size in sizes}


def _synthetic(count: int, real: Path) -> Path:
    folder = HOME / "bench" / f"synthetic-{count}"
    if not can_be_served(folder):
        say(f"search: making an index of {count:,} synthetic vectors in {folder}")
        source: Any = Numbered(count)
        encoder: Any = Mixtures(model(), np.asarray(Index.open(real).vectors))
        build(source, folder, encoder, count, lambda _: None)
    return folder
