"""Indexes to search, of real headlines or of vectors that are made; and searching them without queue and HTTP."""

import statistics
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from stack import HOME, OURS, Checkout, index_of, model
from threadpoolctl import threadpool_limits

from benchmarks.plan import Plan, Texts, say
from shoal.bench.trial import Figures, Row, Trial
from shoal.contract.options import Options
from shoal.records.source import Source
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.document_encoder import ModelInfo, Waiting, no_wait
from shoal_workers.index.index import Index
from shoal_workers.index.vectors.search import SearchThreads
from shoal_workers.model.model import prepared_folder
from shoal_workers.process import processors

Vectors = NDArray[np.float32]

#: Takes queries and returns the rows of the best vectors of each, best first.
Find = Callable[[Vectors], NDArray[np.intp]]

#: Queries in all, numbers of queries in one search, and hits of each query.
NUM_QUERIES, AT_ONCE, K = 256, (1, 64), 10

#: Documents in the index of real headlines, and how many times each of the `equal` vectors comes.
NUM_REAL, EQUAL = 20_000, 100

#: Vectors made at a time.
NUM_MADE = 512


def _mixtures(random: np.random.Generator, real: Vectors, count: int) -> Vectors:
    """Return random mixtures of two real vectors each, which lie in groups where headlines lie."""
    left, right = random.integers(len(real), size=(2, count))
    share = random.random((count, 1), dtype=np.float32)
    return np.asarray(share * real[left] + (1 - share) * real[right])


#: The kinds of made vectors, each of which takes a generator, the real vectors and a count. Random ones lie in all
#: directions alike and are the worst for bounds; equal ones come many times.
KINDS: dict[str, Callable[[np.random.Generator, Vectors, int], Vectors]] = {
    "mixtures": _mixtures,
    "random": lambda random, real, count: random.standard_normal((count, real.shape[1]), np.float32),
    "equal": lambda random, real, count: np.repeat(_mixtures(random, real, -(-count // EQUAL)), EQUAL, axis=0)[:count],
}


class Maker:
    """A stand-in for the encoder of a build: it makes the vectors of numbered texts, `NUM_MADE` at a time."""

    def __init__(self, kind: str, real: Vectors):
        self.model = ModelInfo.of(model(), "made")
        self._kind, self._real = KINDS[kind], real

    def embed(self, texts: Iterable[str], waiting: Waiting = no_wait) -> Generator[Vectors]:
        """Yield the vectors of the texts by their numbers."""
        numbers = (int(text.split()[-1]) for text in texts)
        for group, members in groupby(numbers, lambda number: number // NUM_MADE):
            made = self._kind(np.random.default_rng([7, group]), self._real, NUM_MADE)
            vectors = made[[number % NUM_MADE for number in members]]
            yield np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def real_index(texts: Texts, checkout: Checkout = OURS) -> Path:
    """Return the checkout's index of real headlines."""
    headlines = texts.headlines[:NUM_REAL]
    return index_of(f"headlines-{len(headlines)}", {str(n): text for n, text in enumerate(headlines)}, checkout)


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
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "source.txt"
        source.write_text("".join(f"synthetic document {n}\n" for n in range(count)))
        build(Source(source), folder, Maker(kind, np.asarray(Index.open(real).vectors)))
    return folder


def nearest(plan: Plan) -> list[Row]:
    """Search `plan.vectors` vectors of each kind, with the index and by scoring all, in turns."""
    threads = processors.threads_for(1, processors.available())
    encoder = Encoder.open(prepared_folder(HOME, model().name), "openvino", "auto", threads)
    queries = encoder.embed(plan.texts.headlines[-NUM_QUERIES:], Options(), "")
    rows, real = [], real_index(plan.texts)
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        for kind in KINDS:
            index = Index.open(synthetic(kind, plan.vectors, real), SearchThreads(threads))
            finds = {"shoal": partial(_indexed, index), "all scored": partial(_scored, np.array(index.vectors), pool)}
            trials = [
                Trial(f"{plan.vectors:,} {kind}, {size} at once", name, partial(_timed, find, index, queries, size))
                for size in AT_ONCE
                for name, find in finds.items()
            ]
            rows += plan.interleave("nearest", trials)
    return rows


def _timed(find: Find, index: Index, queries: Vectors, size: int, *_: int) -> Figures:
    times_ms, found, used_s = [], [], time.process_time()
    for start in range(0, len(queries), size):
        started = time.perf_counter()
        found.append(find(queries[start : start + size]))
        times_ms.append((time.perf_counter() - started) * 1_000)
    used_s = time.process_time() - used_s
    exact = [query @ np.asarray(index.vectors).T for query in queries]
    lowest = np.array([np.partition(scores, -K)[-K] for scores in exact])
    scores = np.stack([scores[rows] for scores, rows in zip(exact, np.concatenate(found), strict=True)])
    return {
        "p50 ms": statistics.median(times_ms),
        "min ms": min(times_ms),
        "max ms": max(times_ms),
        "processor ms a query": used_s * 1_000 / len(queries),
        f"recall@{K}": float((scores >= lowest[:, None] - 1e-6).mean()),
    }


def _indexed(index: Index, queries: Vectors) -> NDArray[np.intp]:
    return np.array([[int(hit["id"]) for hit in hits] for hits in index.search(queries, K)])


def _scored(vectors: Vectors, pool: ThreadPoolExecutor, queries: Vectors) -> NDArray[np.intp]:
    """Score all in one matrix product in float32, in parts on threads, and return the best rows."""
    threads = processors.threads_for(1, processors.available())
    parts = pairwise(len(vectors) * n // threads for n in range(threads + 1))
    scores = np.concatenate(list(pool.map(lambda part: queries @ vectors[slice(*part)].T, parts)), axis=1)
    best = np.argpartition(-scores, K, axis=1)[:, :K]
    return np.take_along_axis(best, np.argsort(-np.take_along_axis(scores, best, 1), axis=1), 1)
