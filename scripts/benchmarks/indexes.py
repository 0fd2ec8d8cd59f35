"""Indexes to search, with real headlines or with synthetic vectors."""

from collections.abc import Generator, Iterable, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from stack import HOME, OURS, Checkout, index_of, model

from benchmarks.plan import Texts, say
from shoal.records.source import Source
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.document_encoder import Encoded, Waiting, info_of
from shoal_workers.index.index import Index

Vectors = NDArray[np.float32]

#: Number of documents in the index of real headlines, and number of vectors that are made at a time.
NUM_REAL, NUM_MADE = 20_000, 512


class Maker:
    """A replacement for a build's encoder: it makes the vectors of numbered texts, `NUM_MADE` at a time.

    Each vector is a random mixture of two real vectors, so the vectors lie in groups, as headlines do.
    """

    def __init__(self, real: Vectors):
        self.model = info_of(model(), "made")
        self._real = real

    def encode(self, texts: Iterable[str], _: Sequence[str], waiting: Waiting) -> Generator[Encoded]:
        """Yield the vectors of the texts. The number at the end of a text determines its vector."""
        numbers = (int(text.split()[-1]) for text in texts)
        for group, members in groupby(numbers, lambda number: number // NUM_MADE):
            random = np.random.default_rng([7, group])
            left, right = random.integers(len(self._real), size=(2, NUM_MADE))
            share = random.random((NUM_MADE, 1), dtype=np.float32)
            made = share * self._real[left] + (1 - share) * self._real[right]
            vectors = made[[number % NUM_MADE for number in members]]
            yield Encoded(np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32), [])


def real_index(texts: Texts, checkout: Checkout = OURS) -> Path:
    """Return the checkout's index of real headlines."""
    headlines = texts.headlines[:NUM_REAL]
    return index_of(f"headlines-{len(headlines)}", {str(n): text for n, text in enumerate(headlines)}, checkout)


def indexes_of(sizes: Sequence[int], texts: Texts) -> dict[str, Path]:
    """Return an index of each size by its name; build missing indexes under SHOAL_HOME."""
    real = real_index(texts)
    num_real = Index.open(real).manifest.count
    return {f"n{size}": real if size == num_real else synthetic(size, real) for size in sizes}


def synthetic(count: int, real: Path) -> Path:
    """Return an index of synthetic vectors; build it if it is missing."""
    folder = HOME / "bench" / f"synthetic-mixtures-{count}-{model().digest[:8]}"
    if not OURS.can_serve(folder):
        say(f"making an index of {count:,} synthetic vectors in {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "source.txt"
        source.write_text("".join(f"synthetic document {n}\n" for n in range(count)))
        build(Source(source), folder, Maker(np.asarray(Index.open(real).vectors)))
    return folder
