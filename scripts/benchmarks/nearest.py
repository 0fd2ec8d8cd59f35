"""Searching an index in process, without queue and HTTP, against scoring all of it."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from stack import HOME, model
from threadpoolctl import threadpool_limits

from benchmarks.indexes import KINDS, real_index, synthetic
from benchmarks.plan import Plan
from shoal.bench.trial import Figures, Row, Trial
from shoal.jobs import Options
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.index import Index
from shoal_workers.model.model import prepared_folder
from shoal_workers.process import processors

Vectors = NDArray[np.float32]

#: Takes queries and returns the rows of the best vectors of each, best first.
Find = Callable[[Vectors], NDArray[np.intp]]

#: Queries in all, those of one search, and hits to find.
NUM_QUERIES, AT_ONCE, K = 256, (1, 64), 10


def run(plan: Plan) -> list[Row]:
    """Search `plan.vectors` vectors of each kind, with the index and by scoring all, in turns."""
    threads = processors.threads_for(1, processors.available())
    encoder = Encoder.open(prepared_folder(HOME, model().name), "openvino", "auto", threads)
    queries = encoder.embed(plan.texts.headlines[-NUM_QUERIES:], Options(), "")
    rows, real = [], real_index(plan.texts)
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        for kind in KINDS:
            index = Index.open(synthetic(kind, plan.vectors, real), threads)
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
