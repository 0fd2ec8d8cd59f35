"""Approximate search beside libraries for it, in one run: what building takes, and searches with recall 0.99.

The libraries are no dependencies: `pip install faiss-cpu usearch`, or they are left out.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stack import HOME, model

from benchmarks.indexes import KINDS, K, Vectors, real_index
from benchmarks.plan import Plan, own_process, say
from benchmarks.size import memory_mb, queries_of
from shoal.bench.trial import Figures, Row, Trial
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.build.cells import find_margins, make_cells
from shoal_workers.index.index import Index
from shoal_workers.index.vectors.approximate_search import ApproximateSearch
from shoal_workers.index.vectors.quantisation import QuantisedVectors
from shoal_workers.index.vectors.search import ExactSearch, SearchThreads, batch_top_k
from shoal_workers.model.model import prepared_folder
from shoal_workers.process import processors

#: Candidates that a library returns for a query. The best of them by their full vectors are the hits.
NUM_RESCORED = 50

#: Least recall. Of each library, the fastest setting that reaches it is reported.
RECALL = 0.99

#: Takes a query `[dimension]` and returns the rows that are found for it.
Find = Callable[[Vectors], NDArray[Any]]

#: The searches of a library by their settings, the quickest first.
Finds = Iterable[tuple[float, Find]]


def run(plan: Plan) -> list[Row]:
    """Search `plan.vectors` mixtures of real headlines, for headlines and for sentences of another kind."""
    threads = processors.threads_for(1, processors.available())
    encoder = Encoder.open(prepared_folder(HOME, model().name), "openvino", "auto", threads)
    queries = queries_of(plan, encoder)
    make_vectors = partial(_vectors, plan.vectors, np.array(Index.open(real_index(plan.texts)).vectors))
    exact = {kind: _exact_rows(make_vectors(), of_kind) for kind, of_kind in queries.items()}
    trials = [
        Trial(f"{plan.vectors:,} mixtures", name, partial(_apart, make, make_vectors, queries, exact, threads))
        for name, make in MAKERS.items()
        if find_spec(name.split()[0]) or name.startswith("shoal")
    ]
    return plan.interleave("libraries", trials)


def _vectors(count: int, real: Vectors) -> Vectors:
    made = KINDS["mixtures"](np.random.default_rng(7), real, count)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return made


def _exact_rows(vectors: Vectors, queries: Vectors) -> NDArray[np.intp]:
    return batch_top_k(vectors, QuantisedVectors.of(vectors), queries, K).rows


def _apart(
    make: Callable[..., Finds],
    make_vectors: Callable[[], Vectors],
    queries: dict[str, Vectors],
    exact: dict[str, NDArray[np.intp]],
    threads: int,
    _: int,
    number: int,
) -> Figures:
    """Return the figures of a process of its own, for the sake of its memory; none of the warm-up."""
    if not number:
        return {}
    with own_process() as process:
        return process.submit(_measured, make, make_vectors, queries, exact, threads).result()


def _measured(
    make: Callable[..., Finds],
    make_vectors: Callable[[], Vectors],
    queries: dict[str, Vectors],
    exact: dict[str, NDArray[np.intp]],
    threads: int,
) -> Figures:
    """Build, and search with each setting until one has the recall for all kinds of queries."""
    vectors = make_vectors()
    before_mb, used_s = memory_mb()["own memory in MB"], time.process_time()
    finds = iter(make(vectors, threads))
    figures: dict[str, float] = {}
    for setting, find in finds:
        if not figures:
            figures["build: processor s"] = time.process_time() - used_s
            figures["build: MB"] = memory_mb()["own memory in MB"] - before_mb
        figures["setting"] = setting
        for kind, of_kind in queries.items():
            figures |= {f"{kind}: {name}": value for name, value in _timed(find, of_kind, exact[kind]).items()}
        say(f"{figures}")
        if min(figures[f"{kind}: recall@{K}"] for kind in queries) >= RECALL:
            break
    return figures


def _timed(find: Find, queries: Vectors, exact: NDArray[np.intp]) -> Figures:
    """Return the recall of a search and its times in milliseconds, after a first go."""
    times_ms, found = [], [find(query) for query in queries]
    used_s = time.process_time()
    for query in queries:
        started = time.perf_counter()
        find(query)
        times_ms.append((time.perf_counter() - started) * 1_000)
    used_s = time.process_time() - used_s
    recall = np.mean([np.isin(*rows) for rows in zip(exact, found, strict=True)])
    return {
        f"recall@{K}": float(recall),
        "p50 ms": statistics.median(times_ms),
        "processor ms": used_s * 1_000 / len(queries),
    }


def _ours(vectors: Vectors, threads: int) -> Finds:
    yield 0, partial(_rows_of, ExactSearch(vectors, QuantisedVectors.of(vectors), SearchThreads(threads)))


def _rows_of(search: ExactSearch, query: Vectors) -> NDArray[np.intp]:
    return np.asarray(search.top_k(query[None], K).rows[0])


def _cells(vectors: Vectors, threads: int) -> Finds:
    quantised, of_threads, eligible = QuantisedVectors.of(vectors), SearchThreads(threads), np.ones(len(vectors), bool)
    file, exact_search = make_cells(vectors, quantised), ExactSearch(vectors, quantised, of_threads)
    margins = find_margins(vectors, quantised, file, lambda _: None)
    search = ApproximateSearch(exact_search, quantised.basis, file, *margins, of_threads)
    yield margins[0], lambda query: search.top_k(query[None], K, eligible).rows[0]


def _faiss(factory: str, parameter: str, settings: Sequence[int], vectors: Vectors, threads: int) -> Finds:
    import faiss  # type: ignore[import-not-found]

    faiss.omp_set_num_threads(threads)
    index = faiss.index_factory(vectors.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors[:: max(1, len(vectors) // 200_000)])
    index.add(vectors)
    for setting in settings:
        faiss.ParameterSpace().set_index_parameter(index, parameter, setting)
        yield setting, lambda query: _rescored(vectors, query, index.search(query[None], NUM_RESCORED)[1][0])


def _usearch(vectors: Vectors, threads: int) -> Finds:
    from usearch.index import Index as Graph  # type: ignore[import-not-found]

    graph = Graph(ndim=vectors.shape[1], metric="ip", dtype="i8", connectivity=16)
    graph.add(np.arange(len(vectors)), vectors, threads=threads)
    for expansion in EXPANSIONS:
        graph.expansion_search = expansion
        yield expansion, lambda query: _rescored(vectors, query, graph.search(query, NUM_RESCORED).keys)


def _rescored(vectors: Vectors, query: Vectors, rows: NDArray[Any]) -> NDArray[Any]:
    """Return the best of the rows that a library has found by codes of 8 bits or less."""
    return rows[np.argsort(-(vectors[rows] @ query), kind="stable")[:K]]


EXPANSIONS, PROBES = (64, 128, 256, 512, 1_024, 2_048), (8, 16, 32, 64, 128, 256, 512, 1_024)

#: The libraries by name. Each function builds an index of vectors with a number of threads, and returns its searches.
MAKERS: dict[str, Callable[..., Finds]] = {
    "shoal, exact": _ours,
    "shoal, approximate": _cells,
    "faiss IVF, fast scan": partial(_faiss, "IVF4096,PQ96x4fs,Refine(SQ8)", "nprobe", PROBES),
    "faiss HNSW": partial(_faiss, "HNSW16,SQ8", "efSearch", EXPANSIONS),
    "usearch HNSW": _usearch,
}
