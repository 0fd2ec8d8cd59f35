"""An index of many documents, searched exactly and approximately in one process: times, recall and memory."""

import re
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from stack import HOME, datasets, model

from benchmarks.indexes import Vectors, real_index
from benchmarks.large import large_index
from benchmarks.plan import Plan, own_process, say
from shoal.bench.trial import Figures, Row, Trial
from shoal.contract.options import Options
from shoal.operations import Search
from shoal.operations.search_options import SearchOptions
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.build.cells import find_margins, make_cells
from shoal_workers.index.index import Index
from shoal_workers.index.vectors.approximate_search import ApproximateSearch
from shoal_workers.index.vectors.quantisation import QuantisedVectors
from shoal_workers.index.vectors.search import ExactSearch, SearchThreads, batch_top_k
from shoal_workers.model.model import prepared_folder
from shoal_workers.process import processors

#: Queries, and hits of each.
NUM_QUERIES, K = 100, 10

#: Words of which the documents are made.
NUM_WORDS = 4_096

#: Filters, by the part of the documents that they leave.
FILTERS = {
    "50 %": {"part": {"lt": 500}},
    "10 %": {"part": {"lt": 100}},
    "3 %": {"part": {"lt": 30}},
    "1 %": {"part": {"lt": 10}},
    "0.1 %": {"part": 5},
}


def run(plan: Plan) -> list[Row]:
    """Search `plan.vectors` documents in both ways, and real headlines, which no mixture is like in all."""
    words = sorted({word for text in plan.texts.headlines for word in re.findall(r"[a-z]+", text.lower())})[:NUM_WORDS]
    folder = large_index(plan.vectors, np.array(Index.open(real_index(plan.texts)).vectors), words)
    threads = processors.threads_for(1, processors.available())
    encoder = Encoder.open(prepared_folder(HOME, model().name), "openvino", "auto", threads)
    queries = queries_of(plan, encoder)
    trials = [
        Trial(f"{plan.vectors:,} documents", "shoal", partial(_apart, _searched, folder, queries, threads)),
        Trial(f"{plan.vectors:,} documents, filters", "shoal", partial(_apart, _filtered, folder, queries, threads)),
    ]
    rows = plan.interleave("size", trials)
    say(f"embedding {len(plan.texts.headlines):,} headlines")
    real = encoder.embed(plan.texts.headlines[:-NUM_QUERIES], Options(), "")
    return rows + plan.interleave("size", [Trial("real headlines", "shoal", partial(_recalled, real, queries))])


def queries_of(plan: Plan, encoder: Encoder) -> dict[str, Vectors]:
    """Return headlines, which are like the documents, sentences of another kind, and questions of another field."""
    texts = {
        "headlines": plan.texts.headlines[-NUM_QUERIES:],
        "sentences": _some([first for first, _, _ in datasets().stsb_dev()]),
        "questions": _some([*datasets().cranfield()[1].values()]),
    }
    return {kind: encoder.embed(of_kind, Options(), "") for kind, of_kind in texts.items()}


def _some(texts: list[str]) -> list[str]:
    """Return as many of the texts as there are queries, at equal distances."""
    return texts[:: len(texts) // NUM_QUERIES][:NUM_QUERIES]


def _apart(measure: Callable[..., Figures], *arguments: object) -> Figures:
    """Return the figures of a process of its own, for the sake of its memory; none of the warm-up."""
    *given, _, number = arguments
    if not number:
        return {}
    with own_process() as process:
        return process.submit(measure, *given).result()


def _searched(folder: Path, queries: dict[str, Vectors], threads: int) -> Figures:
    """Return the times of both searches of an index, their recall, and the memory that each has taken."""
    started = time.perf_counter()
    index = Index.open_version(folder / "made", SearchThreads(threads))
    figures = {"opened in s": time.perf_counter() - started}
    exact = _exact_ids(index, np.concatenate([*queries.values()]))
    for n, (kind, of_kind) in enumerate(queries.items()):
        found, times = _timed(partial(_hits, index), of_kind)
        figures |= {f"approximate, {kind}: {name}": value for name, value in times.items()}
        figures[f"approximate, {kind}: recall@{K}"] = _recall(found, exact[n * NUM_QUERIES : (n + 1) * NUM_QUERIES])
    figures |= {f"approximate: {name}": value for name, value in memory_mb().items()}
    _, times = _timed(partial(_hits, index, exact=True), queries["headlines"])
    return figures | {f"exact: {name}": value for name, value in (times | memory_mb()).items()}


def _exact_ids(index: Index, queries: Vectors) -> list[list[str]]:
    """Return the ids that exact searches find, which are the numbers of the rows."""
    manifest, (count, dimension) = index.manifest, index.vectors.shape
    quantised = QuantisedVectors.open(index.folder, count, dimension, manifest.quantised_width)
    return [[*map(str, rows)] for rows in batch_top_k(index.vectors, quantised, queries, K).rows.tolist()]


def _filtered(folder: Path, queries: dict[str, Vectors], threads: int) -> Figures:
    """Return the times of searches under filters, and their recall."""
    index = Index.open_version(folder / "made", SearchThreads(threads))
    figures: dict[str, float] = {}
    for left, condition in FILTERS.items():
        found, times = _timed(partial(_hits, index, filter=condition), queries["headlines"])
        exact = [_hits(index, query, filter=condition, exact=True) for query in queries["headlines"]]
        figures |= {f"{left} left: p50 ms": times["p50 ms"], f"{left} left: recall@{K}": _recall(found, exact)}
    return figures


def _hits(index: Index, query: Vectors, **options: object) -> list[str]:
    """Return the ids that a search finds for a vector."""
    job = Search(["a headline"], k=K, search=SearchOptions(**options))  # type: ignore[arg-type]
    return [hit["id"] for hit in index.answer(job, query[None]).hits[0]]


def _timed(find: Callable[[Vectors], list[str]], queries: Vectors) -> tuple[list[list[str]], dict[str, float]]:
    """Return what is found for each query, in a second go, and the times of that in milliseconds."""
    found, times_ms = [], []
    for query in queries[: len(queries) // 4]:
        find(query)
    for query in queries:
        started = time.perf_counter()
        found.append(find(query))
        times_ms.append((time.perf_counter() - started) * 1_000)
    return found, {"p50 ms": statistics.median(times_ms), "p90 ms": float(np.quantile(times_ms, 0.9))}


def _recall(found: list[list[str]], exact: list[list[str]]) -> float:
    shared = sum(len({*one} & {*other}) for one, other in zip(found, exact, strict=True))
    return shared / sum(map(len, exact))


def memory_mb() -> dict[str, float]:
    """Return the memory of this process: what it has of its own, and what it shares, which are mapped files."""
    kinds = dict(re.findall(r"(Rss\w+):\s+(\d+) kB", Path("/proc/self/status").read_text()))
    return {"own memory in MB": int(kinds["RssAnon"]) / 2**10, "mapped files in MB": int(kinds["RssFile"]) / 2**10}


def _recalled(vectors: Vectors, queries: dict[str, Vectors], *_: int) -> Figures:
    """Return the recall of real vectors, whatever their number: a search reads as much as a build finds."""
    quantised = QuantisedVectors.of(vectors)
    file, exact_search = make_cells(vectors, quantised), ExactSearch(vectors, quantised)
    margins = find_margins(vectors, quantised, file, lambda _: None)
    approximate = ApproximateSearch(exact_search, quantised.basis, file, *margins)
    figures = {"cell margin": margins[0], "bit margin": margins[1]}
    for kind, of_kind in queries.items():
        rows = approximate.top_k(of_kind, K, np.ones(len(vectors), bool)).rows
        exact = batch_top_k(vectors, quantised, of_kind, K).rows
        shared = [np.isin(*of_query).mean() for of_query in zip(exact, rows, strict=True)]
        figures[f"{kind}: recall@{K}"] = float(np.mean(shared))
    return figures
