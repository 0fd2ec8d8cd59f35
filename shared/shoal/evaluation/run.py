"""Runs: the hits of all queries of a collection with one setting, and the times of single searches."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from shoal.errors import InvalidRequest
from shoal.evaluation.collection import Collection
from shoal.evaluation.measure import Measure
from shoal.evaluation.resampling import Values
from shoal.evaluation.setting import Setting
from shoal.excerpt import excerpt

#: Queries of a call. Those that a reranker reads the hits of take long.
QUERIES_PER_CALL, QUERIES_PER_RERANK = 32, 4

#: Queries that are timed, spread over the collection, and how many times each.
NUM_TIMED, NUM_ROUNDS = 50, 3


class Search(Protocol):
    """A search of a service: the lists of hits of the queries."""

    def __call__(self, queries: Sequence[str], k: int, **options: Any) -> list[list[dict[str, Any]]]: ...


@dataclass(frozen=True, slots=True)
class Run:
    """The ids of the documents that a setting found for each query, best first, by the id of the query."""

    setting: Setting
    rankings: Mapping[str, Sequence[str]]

    def values(self, measure: Measure, collection: Collection) -> Values:
        """Return the value of the measure for each query of the collection, in its order."""
        found = []
        for query, ranking in self.rankings.items():
            judged = collection.judgements[query]
            found.append(measure.of([judged.get(document, 0) for document in ranking], list(judged.values())))
        return np.array(found, np.float64)


@dataclass(frozen=True, slots=True)
class Ids:
    """The rule by which a hit names its document: by `field`; the document of the query's own id may be left out."""

    field: str = "id"
    is_own_left_out: bool = False

    def ranking(self, query: str, hits: Sequence[Mapping[str, Any]], depth: int) -> list[str]:
        """Return the ids of at most `depth` different documents, best first. Raises InvalidRequest."""
        found: dict[str, None] = {}
        for hit in hits:
            if self.field not in hit:
                raise InvalidRequest(f"a hit has no field {excerpt(self.field)}: name another one with --id-field")
            found[str(hit[self.field])] = None
        if self.is_own_left_out:
            found.pop(query, None)
        return list(islice(found, depth))


def _num_hits(setting: Setting, most: int) -> int:
    """Return how many hits to ask for: no more than a reranker reads, as a search refuses that."""
    rerank = setting.options.get("rerank")
    top_n = rerank.get("top_n") if isinstance(rerank, dict) else None
    return min(most, top_n) if isinstance(top_n, int) and top_n > 0 else most


def run(
    search: Search,
    collection: Collection,
    setting: Setting,
    depth: int,
    ids: Ids = Ids(),
    on_progress: Callable[[int], object] = lambda num: None,
) -> Run:
    """Search for all queries with the setting, and return the first `depth` documents of each.

    `on_progress` gets the number of queries after each call. Raises InvalidRequest if no hit of any query is judged,
    and what the search raises.
    """
    names = list(collection.queries)
    rankings: dict[str, list[str]] = {}
    step = QUERIES_PER_RERANK if "rerank" in setting.options else QUERIES_PER_CALL
    k = _num_hits(setting, depth + ids.is_own_left_out)
    for start in range(0, len(names), step):
        part = names[start : start + step]
        texts = [collection.queries[name] for name in part]
        found = search(texts, k, **setting.options)
        rankings |= {name: ids.ranking(name, hits, depth) for name, hits in zip(part, found, strict=True)}
        on_progress(len(part))
    if not any(collection.judgements[name].keys() & set(ranking) for name, ranking in rankings.items()):
        some = next((document for ranking in rankings.values() for document in ranking), None)
        raise InvalidRequest(
            f"no hit of any query is judged (the first hit is {excerpt(some)}): is this the index of the collection? "
            "If another field of its hits has the ids that were judged, name it with --id-field"
        )
    return Run(setting, rankings)


@dataclass(frozen=True, slots=True)
class Times:
    """The times of single searches of one setting, in milliseconds."""

    p50_ms: float
    p90_ms: float


def times(
    search: Search, queries: Sequence[str], settings: Sequence[Setting], k: int, num_rounds: int = NUM_ROUNDS
) -> list[Times]:
    """Return the times of the settings, in their order: one query a search, on one connection, the settings in turns.

    Each query was embedded before, so its vector comes from the cache if the service has one.
    """
    chosen = queries[:: max(1, len(queries) // NUM_TIMED)][:NUM_TIMED]
    found: list[list[float]] = [[] for _ in settings]
    for number in range(num_rounds + 1):
        for query in chosen:
            for setting, of_setting in zip(settings, found, strict=True):
                start = time.perf_counter()
                search([query], _num_hits(setting, k), **setting.options)
                if number:  # the first round warms up
                    of_setting.append(1_000 * (time.perf_counter() - start))
    return [Times(*map(float, np.percentile(of_setting, [50, 90]))) for of_setting in found]
