"""Indexes to search in benchmarks: of real headlines, and large ones made without embedding a million texts."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from stack import HOME, OURS, index_of, model

from benchmarks.plan import Texts, say
from shoal_workers.index.builder import build
from shoal_workers.index.document import Document
from shoal_workers.index.index import Index
from shoal_workers.model.model import Model

Vectors = NDArray[np.float32]

#: Documents in the index of real headlines, and equal vectors in a group.
NUM_REAL, EQUAL = 20_000, 100


def _mixtures(random: Generator, real: Vectors, count: int) -> Vectors:
    """Return random mixtures of two real vectors each, which lie in groups where headlines lie."""
    left, right = random.integers(len(real), size=(2, count))
    share = random.random((count, 1), dtype=np.float32)
    return np.asarray(share * real[left] + (1 - share) * real[right])


#: The kinds of made vectors, each of which takes a generator, the real vectors and a count. Random ones lie in all
#: directions alike and are the worst for bounds; equal ones come many times.
KINDS: dict[str, Callable[[Generator, Vectors, int], Vectors]] = {
    "mixtures": _mixtures,
    "random": lambda random, real, count: random.standard_normal((count, real.shape[1]), np.float32),
    "equal": lambda random, real, count: np.repeat(_mixtures(random, real, -(-count // EQUAL)), EQUAL, axis=0)[:count],
}


class Made:
    """A stand-in for the builder's encoder that makes vectors of a kind, whatever the texts say."""

    def __init__(self, model: Model, real: Vectors, kind: str):
        self.model = model
        self._real, self._kind = real, KINDS[kind]
        self._random = np.random.default_rng(7)

    def prompt(self, *_: object) -> str:
        """Return no prompt."""
        return ""

    def embed(self, texts: Sequence[str], *_: object) -> Vectors:
        """Return a normalised vector for each text: float32 `[texts, dimension]`."""
        vectors = self._kind(self._random, self._real, len(texts))
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


class Numbered:
    """A stand-in for the builder's file: documents that say that they are made up."""

    path = Path("synthetic: vectors made of those of headlines")

    def __init__(self, count: int):
        self.count = count

    def __iter__(self) -> Iterator[Document]:
        return (Document(str(n), f"synthetic document {n}", {}) for n in range(self.count))


def real_index(texts: Texts) -> Path:
    """Return the index of real headlines."""
    headlines = texts.headlines[:NUM_REAL]
    return index_of(f"headlines-{len(headlines)}", {str(n): text for n, text in enumerate(headlines)})


def indexes_of(sizes: Sequence[int], texts: Texts) -> dict[str, Path]:
    """Return an index of each size by its name; build under SHOAL_HOME those that are missing."""
    real = real_index(texts)
    num_real = Index.open(real).manifest.count
    return {f"n{size}": real if size == num_real else synthetic("mixtures", size, real) for size in sizes}


def synthetic(kind: str, count: int, real: Path) -> Path:
    """Return an index of made vectors; build it if it is missing."""
    folder = HOME / "bench" / f"synthetic-{kind}-{count}-{model().digest[:8]}"
    if not OURS.can_serve(folder):
        say(f"making an index of {count:,} synthetic vectors in {folder}")
        source: Any = Numbered(count)
        encoder: Any = Made(model(), np.asarray(Index.open(real).vectors), kind)
        build(source, folder, encoder, count, lambda _: None)
    return folder
