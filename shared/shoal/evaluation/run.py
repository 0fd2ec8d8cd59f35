"""A run of a test collection: the documents that a setting finds for each query, and the times of searches."""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from shoal.contract.excerpt import excerpt
from shoal.contract.options import OPTION_NAMES
from shoal.errors import InvalidRequest
from shoal.evaluation.collection import Collection
from shoal.operations.search_options import SEARCH_NAMES
from shoal.process.progress import StepBar

#: Number of queries in a call, and in a call with a reranker, which is slower.
QUERIES_PER_CALL, QUERIES_PER_RERANK = 32, 4

#: Number of queries, spread over the collection, that are timed, and how often each of them is timed.
NUM_TIMED, NUM_ROUNDS = 50, 3

#: The ids of the documents found for each query, best first, by the id of the query.
Rankings = Mapping[str, Sequence[str]]

#: A function that searches a service. Its arguments are queries, `k` and options, and it returns hits for each query.
Search = Callable[..., list[list[dict[str, Any]]]]

#: The search options that an evaluation may use. All of them leave one list of hits for each query.
_ALLOWED = {*OPTION_NAMES, *SEARCH_NAMES} - {"cursor", "fuse", "like", "num_negative", "vectors"}

_WORD = re.compile(r"([\w.]+)=(.*?)(?=\s+[\w.]+=|\s*$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Setting:
    """The options of a search, with the name that tables show for them."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the setting that a text such as `mode=hybrid alpha=0.6 rerank.top_n=50` describes.

        An empty text describes the service's defaults. A value that is not JSON is a string. A name with dots sets a
        value in a nested map. Raises InvalidRequest.
        """
        options: dict[str, Any] = {}
        if rest := _WORD.sub("", text).strip():
            raise InvalidRequest(f"the setting has {excerpt(rest)}: write NAME=VALUE, such as mode=hybrid alpha=0.6")
        for name, found in _WORD.findall(text):
            value = found.strip()
            *parents, last = name.split(".")
            place: Any = options
            for parent in parents:
                place = place.setdefault(parent, {}) if isinstance(place, dict) else place
            if not isinstance(place, dict) or last in place:
                raise InvalidRequest(f"the setting has {excerpt(name)} twice: leave one out")
            try:
                place[last] = json.loads(value)
            except (ValueError, RecursionError):
                if value[:1] in ("{", "[", '"') or not value:
                    raise InvalidRequest(f"the setting has {name}={excerpt(value)}: its value is no JSON") from None
                place[last] = value
        if unknown := [name for name in options if name not in _ALLOWED]:
            raise InvalidRequest(
                f"the setting has {excerpt(unknown[0])}: it takes options of a search with one list of hits for a query"
            )
        return cls(" ".join(text.split()) or "defaults", options)

    def num_hits(self, most: int) -> int:
        """Return the number of hits to ask for: `most`, or the reranker's `top_n` if that is lower."""
        rerank = self.options.get("rerank")
        top_n = rerank.get("top_n") if isinstance(rerank, dict) else None
        return min(most, top_n) if isinstance(top_n, int) and top_n > 0 else most


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
    """Search for all queries with the setting, and return the first `depth` documents of each query.

    The chunks of a document count as one document. With `leave_out_own`, a document with the id of the query is left
    out. Raises InvalidRequest if no query has a judged hit or if a hit has no `id_field`, and the errors of `search`.
    """
    names, rankings = list(collection.queries), dict[str, list[str]]()
    step = QUERIES_PER_RERANK if "rerank" in setting.options else QUERIES_PER_CALL
    k = setting.num_hits(depth + leave_out_own)
    with StepBar(setting.name, len(names), unit=" queries") as progress:
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
            progress.done += len(part)
    if not any(collection.judgements[name].keys() & set(ranking) for name, ranking in rankings.items()):
        some = next((document for ranking in rankings.values() for document in ranking), None)
        raise InvalidRequest(
            f"no hit of any query is judged (the first hit is {excerpt(some)}): is this the index of the collection? "
            "If another field of its hits has the ids that were judged, name it with --id-field"
        )
    return rankings


def times(search: Search, queries: Sequence[str], settings: Sequence[Setting], k: int) -> list[Times]:
    """Return the times of each setting. Each search has one query, and the settings take turns query by query.

    Each query was embedded before, so if the service has a cache, the query's vector comes from it.
    """
    chosen = queries[:: max(1, len(queries) // NUM_TIMED)][:NUM_TIMED]
    found: list[list[float]] = [[] for _ in settings]
    with StepBar(f"timing {len(settings)} settings"):
        for number in range(NUM_ROUNDS + 1):
            for query in chosen:
                for setting, of_setting in zip(settings, found, strict=True):
                    start = time.perf_counter()
                    search([query], setting.num_hits(k), **setting.options)
                    if number:  # the first round only warms up the service
                        of_setting.append(1_000 * (time.perf_counter() - start))
    return [Times(*map(float, np.percentile(of_setting, [50, 90]))) for of_setting in found]
