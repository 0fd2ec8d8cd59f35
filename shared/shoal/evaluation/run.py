"""A run of a test collection: the documents that a setting of a search finds for each query."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from shoal.contract.checks import check_known
from shoal.contract.excerpt import excerpt
from shoal.contract.options import OPTION_NAMES
from shoal.errors import InvalidRequest
from shoal.evaluation.collection import Collection
from shoal.operations.search_options import SEARCH_NAMES
from shoal.process.progress import StepBar

#: Number of queries in a call, and in a call with a reranker, which is slower.
QUERIES_PER_CALL, QUERIES_PER_RERANK = 32, 4

#: The ids of the documents found for each query, best first, by the id of the query.
Rankings = Mapping[str, Sequence[str]]

#: A function that searches a service. Its arguments are queries, `k` and options, and it returns hits for each query.
Search = Callable[..., list[list[dict[str, Any]]]]

#: The search options that an evaluation may use. All of them leave one list of hits for each query.
_ALLOWED = {*OPTION_NAMES, *SEARCH_NAMES} - {"cursor", "fuse", "like", "num_negative", "vectors"}


@dataclass(frozen=True, slots=True)
class Setting:
    """The options of a search, with the name that tables show for them."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the setting that a text such as `mode=hybrid alpha=0.6 rerank.top_n=50` describes.

        An empty text describes the service's defaults. A value has no spaces; a value that is not JSON is a string. A
        name with dots sets a value in a nested map. Raises InvalidRequest for an unknown option.
        """
        options: dict[str, Any] = {}
        for word in text.split():
            name, _, value = word.partition("=")
            *parents, last = name.split(".")
            place = options
            for parent in parents:
                place = place.setdefault(parent, {})
                if not isinstance(place, dict):
                    raise InvalidRequest(f"the setting has {excerpt(parent)} twice: leave one out")
            try:
                place[last] = json.loads(value)
            except (ValueError, RecursionError):
                place[last] = value
        check_known("option", options, _ALLOWED)
        return cls(" ".join(text.split()) or "defaults", options)

    def num_hits(self, most: int) -> int:
        """Return the number of hits to ask for: `most`, or the reranker's `top_n` if that is lower."""
        rerank = self.options.get("rerank")
        top_n = rerank.get("top_n") if isinstance(rerank, dict) else None
        return min(most, top_n) if isinstance(top_n, int) and top_n > 0 else most


def run(search: Search, collection: Collection, setting: Setting, depth: int, leave_out_own: bool = False) -> Rankings:
    """Search for all queries with the setting, and return the first `depth` documents of each query.

    The chunks of a document count as one document. With `leave_out_own`, a document with the id of the query is left
    out. Raises InvalidRequest if there are hits and none is judged, and the errors of `search`.
    """
    names, rankings = list(collection.queries), dict[str, list[str]]()
    step = QUERIES_PER_RERANK if "rerank" in setting.options else QUERIES_PER_CALL
    k = setting.num_hits(depth + leave_out_own)
    with StepBar(setting.name, len(names), unit=" queries") as progress:
        for start in range(0, len(names), step):
            part = names[start : start + step]
            found = search([collection.queries[name] for name in part], k, **setting.options)
            for name, hits in zip(part, found, strict=True):
                documents = dict.fromkeys(hit["id"] for hit in hits)
                if leave_out_own:
                    documents.pop(name, None)
                rankings[name] = list(documents)[:depth]
            progress.done += len(part)
    some = next((document for ranking in rankings.values() for document in ranking), None)
    is_judged = any(collection.judgements[name].keys() & set(ranking) for name, ranking in rankings.items())
    if some is not None and not is_judged:
        raise InvalidRequest(
            f"no hit of any query is judged (the first hit is {excerpt(some)}): search the index of this collection, "
            "whose documents have the ids that were judged"
        )
    return rankings
