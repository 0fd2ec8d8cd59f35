"""Runs: the documents that a setting finds for each query of a collection, and the times of single searches."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest
from shoal.evaluation.collection import Collection
from shoal.evaluation.setting import Setting
from shoal.process.progress import Progress

#: Queries of a call, and of a call whose hits a reranker reads, which takes long.
QUERIES_PER_CALL, QUERIES_PER_RERANK = 32, 4

#: Queries that are timed, spread over the collection, and how many times each.
NUM_TIMED, NUM_ROUNDS = 50, 3

#: The ids of the documents that were found for each query, best first, by the id of the query.
Rankings = Mapping[str, Sequence[str]]


#: A search of a service: it takes queries, `k` and options, and returns a list of hits for each query.
Search = Callable[..., list[list[dict[str, Any]]]]


@dataclass(frozen=True, slots=True)
class Times:
    """The times of single searches of one setting, in milliseconds."""

    p50_ms: float
    p90_ms: float


def run(
    search: Search,
    collection: Collection,
    setting: Setting,
    depth: int,
    id_field: str = "id",
    leave_out_own: bool = False,
) -> Rankings:
    """Search for all queries with the setting, and return the first `depth` documents of each.

    The chunks of a document count as one. With `leave_out_own`, the document of the query's own id does not count.
    Raises InvalidRequest if no hit of any query is judged, or one has no `id_field`, and what the search raises.
    """
    names, rankings = list(collection.queries), dict[str, list[str]]()
    step = QUERIES_PER_RERANK if "rerank" in setting.options else QUERIES_PER_CALL
    k = setting.num_hits(depth + leave_out_own)
    with Progress(setting.name, len(names), unit=" queries") as progress:
        for start in range(0, len(names), step):
            part = names[start : start + step]
            found = search([collection.queries[name] for name in part], k, **setting.options)
            for name, hits in zip(part, found, strict=True):
                if any(id_field not in hit for hit in hits):
                    raise InvalidRequest(f"a hit has no field {excerpt(id_field)}: name another one with --id-field")
                documents = dict.fromkeys(str(hit[id_field]) for hit in hits)
                if leave_out_own:
                    documents.pop(name, None)
                rankings[name] = list(documents)[:depth]
            progress.advance(len(part))
    if not any(collection.judgements[name].keys() & set(ranking) for name, ranking in rankings.items()):
        some = next((document for ranking in rankings.values() for document in ranking), None)
        raise InvalidRequest(
            f"no hit of any query is judged (the first hit is {excerpt(some)}): is this the index of the collection? "
            "If another field of its hits has the ids that were judged, name it with --id-field"
        )
    return rankings


def times(search: Search, queries: Sequence[str], settings: Sequence[Setting], k: int) -> list[Times]:
    """Return the times of the settings, in their order: one query a search, on one connection, the settings in turns.

    Each query was embedded before, so its vector comes from the cache if the service has one.
    """
    chosen = queries[:: max(1, len(queries) // NUM_TIMED)][:NUM_TIMED]
    found: list[list[float]] = [[] for _ in settings]
    with Progress(f"timing {len(settings)} settings"):
        for number in range(NUM_ROUNDS + 1):
            for query in chosen:
                for setting, of_setting in zip(settings, found, strict=True):
                    start = time.perf_counter()
                    search([query], setting.num_hits(k), **setting.options)
                    if number:  # the first round warms up
                        of_setting.append(1_000 * (time.perf_counter() - start))
    return [Times(*map(float, np.percentile(of_setting, [50, 90]))) for of_setting in found]
