"""Searching an index in process, without queue and HTTP, against scoring all of it: `python -m benchmarks.nearest`.

Run in `scripts`. Vectors are mixtures of those of two headlines each, as in the other benchmarks; or random, which lie
in all directions alike and have the longest quantised copy; or in groups of equal ones.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from stack import HOME, about_machine, model
from threadpoolctl import threadpool_limits

from benchmarks.indexes import NUM_REAL, Mixtures, indexes_of
from benchmarks.texts import load_texts
from shoal.jobs import Options
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.index import Index
from shoal_workers.index.quantisation import QuantisedVectors
from shoal_workers.index.search import ExactSearch
from shoal_workers.model.model import prepared_folder
from shoal_workers.process import processors

Vectors = NDArray[np.float32]

#: Vectors made at a time, equal ones in a group, and hits to find.
CHUNK, EQUAL, K = 50_000, 100, 10

#: Queries in all, and those of one search.
NUM_QUERIES, AT_ONCE = 256, 64


def main() -> None:
    """Prints the machine and a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nearest", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--kind", choices=KINDS, default="mixtures")
    parser.add_argument("--runs", type=int, default=3, help="runs over all queries, both ways in turns")
    args = parser.parse_args()
    print("\n".join(f"{name}: {text}" for name, text in about_machine().items()))
    texts = load_texts()
    real = Index.open(indexes_of([NUM_REAL], texts)[f"n{NUM_REAL}"]).vectors
    encoder = Encoder.open(
        prepared_folder(HOME, model().name), "openvino", "auto", threads := processors.threads_for(1, 2)
    )
    queries = encoder.embed(texts.headlines[-NUM_QUERIES:], Options(), "")
    vectors = np.concatenate(list(KINDS[args.kind](args.count, real)))
    with TemporaryDirectory(dir=HOME) as folder:
        measure(vectors, queries, Path(folder), args.runs, threads)


def measure(vectors: Vectors, queries: Vectors, folder: Path, runs: int, threads: int) -> None:
    """Quantise the vectors, and search with the quantised copy and without."""
    started, used = time.perf_counter(), time.process_time()
    width = QuantisedVectors.write(folder, vectors)
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - used
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{len(vectors):,} vectors of {vectors.shape[1]}, {vectors.nbytes / 2**20:,.0f} MB; quantised copy:", end=" ")
    print(
        f"{width} bytes each, {size_bytes / 2**20:,.0f} MB, built in {wall_s:.1f} s ({cpu_s:.1f} s of processor time)"
    )
    threadpool_limits(1, user_api="blas")
    count, dimension = vectors.shape
    exact = ExactSearch(vectors, QuantisedVectors.open(folder, count, dimension, width), threads)
    ways: dict[str, Find] = {"Shoal": exact.top_k, "all scored": scoring_all(vectors, threads)}
    rows = {name: np.concatenate([find(query[None], K)[0] for query in queries]) for name, find in ways.items()}
    scores = {name: np.take_along_axis(np.stack([vectors @ q for q in queries]), r, 1) for name, r in rows.items()}
    found = scores["Shoal"] >= scores["all scored"][:, -1:] - 1e-6
    print(f"recall@{K} of {len(queries)} queries: {found.mean():.4f}; threads: {threads}\n")
    print("| | queries at once | p50 ms | min ms | max ms | processor ms a query |\n|---|---|---|---|---|---|")
    for size in (1, AT_ONCE):
        times: dict[str, list[float]] = {name: [] for name in ways}
        spent = dict.fromkeys(ways, 0.0)
        for _ in range(runs):
            for name, find in ways.items():
                used = time.process_time()
                times[name] += timed(find, queries, size)
                spent[name] += time.process_time() - used
        for name, seconds in times.items():
            wall = (statistics.median(seconds), min(seconds), max(seconds))
            cells = [*(s * 1000 for s in wall), spent[name] * 1000 / (runs * len(queries))]
            print(f"| {name} | {size} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")


Find = Callable[[Vectors, int], tuple[NDArray[np.intp], Vectors]]


def timed(find: Find, queries: Vectors, size: int) -> list[float]:
    """Seconds of each search of `size` queries."""
    times = []
    for start in range(0, len(queries), size):
        started = time.perf_counter()
        find(queries[start : start + size], K)
        times.append(time.perf_counter() - started)
    return times


def scoring_all(vectors: Vectors, threads: int) -> Find:
    """One matrix product in float32, in parts on threads, and the best of its rows."""
    pool = ThreadPoolExecutor(threads)
    parts = list(pairwise(len(vectors) * n // threads for n in range(threads + 1)))

    def find(queries: Vectors, k: int) -> tuple[NDArray[np.intp], Vectors]:
        scores = np.concatenate(list(pool.map(lambda part: queries @ vectors[slice(*part)].T, parts)), axis=1)
        best = np.argpartition(-scores, k, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1)
        best = np.take_along_axis(best, order, 1)
        return best, np.take_along_axis(scores, best, 1)

    return find


def mixtures(count: int, real: Vectors) -> Iterator[Vectors]:
    """Mixtures of two headlines each."""
    source = Mixtures(model(), real)
    return (source.embed([""] * min(CHUNK, count - start)) for start in range(0, count, CHUNK))


def random(count: int, real: Vectors) -> Iterator[Vectors]:
    """Vectors in all directions alike."""
    generator = np.random.default_rng(7)
    for start in range(0, count, CHUNK):
        vectors = generator.standard_normal((min(CHUNK, count - start), real.shape[1]), np.float32)
        yield vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def equal(count: int, real: Vectors) -> Iterator[Vectors]:
    """Mixtures, each many times."""
    for chunk in mixtures(-(-count // EQUAL), real):
        yield np.repeat(chunk, EQUAL, axis=0)


KINDS: dict[str, Callable[[int, Vectors], Iterator[Vectors]]] = {
    "mixtures": mixtures,
    "random": random,
    "equal": equal,
}

if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
