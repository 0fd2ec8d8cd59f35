"""Collections of Qdrant, at `qdrant://host:6333`, or with TLS at `qdrants://host:6333`."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from qdrant_client import QdrantClient
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse
from qdrant_client.models import (
    Batch,
    CollectionStatus,
    Distance,
    Filter,
    PayloadSchemaType,
    QueryRequest,
    SearchParams,
    VectorParams,
)

from shoal.errors import InvalidRequest
from shoal_workers.index.engines.engine import Found
from shoal_workers.index.engines.fields import Bound, Language

#: Least number of candidates that a search of the graph keeps.
EF_SEARCH = 100

#: Most bytes of a call that adds rows, and bytes per number in it. Qdrant refuses calls of more than 32 MB.
MAX_CALL_BYTES, NUMBER_BYTES = 16_000_000, 24

#: Time between two looks at a collection that Qdrant is indexing, in seconds.
LOOK_EVERY_S = 0.5

T = TypeVar("T")
_TYPES = {str: PayloadSchemaType.KEYWORD, float: PayloadSchemaType.FLOAT}
_NAMES = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}


def _all_of(conditions: Sequence[str]) -> str:
    return f'{{"must": [{", ".join(conditions)}]}}' if conditions else _negation(_any_of([]))


def _any_of(conditions: Sequence[str]) -> str:
    return f'{{"should": [{", ".join(conditions)}]}}' if conditions else '{"has_id": []}'


def _negation(condition: str) -> str:
    return f'{{"must_not": [{condition}]}}'


def _exists(key: str) -> str:
    return _negation(json.dumps({"is_empty": {"key": key}}))


def _one_of(key: str, terms: Sequence[Any]) -> str:
    if isinstance(terms[0], str):
        return json.dumps({"key": key, "match": {"any": terms}})
    return _any_of([_between(key, [(">=", term), ("<=", term)]) for term in terms])  # `match` takes no fractions


def _between(key: str, bounds: Sequence[Bound]) -> str:
    """Return a condition with the narrowest of the bounds at each end."""
    narrowing = sorted(bounds, key=lambda bound: bound[1] if bound[0][0] == ">" else -bound[1])
    return json.dumps({"key": key, "range": {_NAMES[operator]: number for operator, number in narrowing}})


class Table:
    """A collection, whose points have the numbers of the rows. A filter is the text of a condition in JSON."""

    outages, refusals = (ResponseHandlingException, ConnectionError), (UnexpectedResponse, LookupError)
    language = Language(_all_of, _any_of, _negation, _exists, _one_of, _between, compares_each=True)

    def __init__(self, url: str, name: str, password: str, timeout_s: int):
        parts = urlsplit(url)
        if parts.username is not None or parts.query:
            raise InvalidRequest("the address of Qdrant has a host, a port and a path, and nothing else")
        url = parts._replace(scheme="https" if parts.scheme == "qdrants" else "http").geturl()
        headers = {"api-key": password} if password else {}  # the client warns if `api_key` is given without TLS
        self._client = QdrantClient(url=url, headers=headers, timeout=timeout_s, check_compatibility=False)
        self._name = name

    def create(self, dimension: int, types: Mapping[str, type]) -> None:
        """Make the collection, and the indexes of its fields, if there are none."""
        if not self._ask(self._client.collection_exists):
            self._ask(self._client.create_collection, VectorParams(size=dimension, distance=Distance.DOT))
        for key, type_ in types.items():
            self._ask(self._client.create_payload_index, key, _TYPES[type_])

    def count(self) -> int:
        """Return the number of rows; 0 if there is no collection."""
        try:
            return int(self._ask(self._client.count).count)
        except LookupError:
            return 0

    def add(
        self, first: int, vectors: NDArray[np.float32], documents: Sequence[str], values: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write rows, numbered from `first`, in calls small enough for Qdrant. Existing rows are replaced."""
        row_bytes = NUMBER_BYTES * vectors.shape[1] + max(len(json.dumps(document)) for document in documents)
        at_once = max(1, MAX_CALL_BYTES // row_bytes)
        for start in range(0, len(documents), at_once):
            part = slice(start, start + at_once)
            payloads = [{**own, "document": one} for one, own in zip(documents[part], values[part], strict=True)]
            rows = range(first + start, first + start + len(payloads))
            self._ask(self._client.upsert, Batch(ids=[*rows], vectors=vectors[part].tolist(), payloads=payloads))

    def finish(self) -> None:
        """Wait until Qdrant has indexed the rows. There is no time limit."""
        while self._ask(self._client.get_collection).status is CollectionStatus.YELLOW:
            time.sleep(LOOK_EVERY_S)

    def search(self, queries: NDArray[np.float32], k: int, wanted: str | None) -> Found:
        """Return the `k` nearest rows that match a filter, for each query."""
        matching = Filter.model_validate({"must": [json.loads(wanted)]}) if wanted else None
        options = {"filter": matching, "params": SearchParams(hnsw_ef=max(k, EF_SEARCH)), "limit": k}
        requests = [QueryRequest(query=query, with_payload=["document"], **options) for query in queries.tolist()]
        answers = self._ask(self._client.query_batch_points, requests)
        return [[(point.score, point.payload["document"]) for point in answer.points] for answer in answers]

    def drop(self) -> None:
        """Delete the collection, if there is one."""
        self._ask(self._client.delete_collection)

    def _ask(self, call: Callable[..., T], *arguments: Any) -> T:
        """Return the result of a call about the collection.

        Raises LookupError if there is no collection, and ConnectionError for a refused key or a server that fails.
        """
        try:
            return call(self._name, *arguments)
        except ResourceExhaustedResponse as error:
            raise ConnectionError("there are too many calls") from error
        except UnexpectedResponse as error:
            if error.status_code == 404:
                raise LookupError("there is no such collection") from error
            if error.status_code in (401, 403, 429) or error.status_code >= 500:
                raise ConnectionError(f"the answer is {error.status_code} ({error.reason_phrase})") from error
            raise
