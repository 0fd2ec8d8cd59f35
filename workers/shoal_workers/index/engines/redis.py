"""Vector sets in Redis 8, at `redis://host:6379/0`, each beside a hash with the documents."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError, TimeoutError
from redis.retry import Retry

from shoal.errors import InvalidRequest
from shoal.operations.search_filter import All, AnyOf, Between, Exists, Filter, Not, OneOf
from shoal_workers.index.engines.engine import Found, Rows
from shoal_workers.index.engines.fields import is_list

#: Number of rows that a search visits at least.
EF_SEARCH = 200

#: Number of rows that a search with a filter visits at most, until it has enough rows that match: all rows.
MAX_VISITED = 10**9

#: The operators of ranges in a filter of Redis.
_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def open_collection(url: str, name: str, password: str, timeout_s: int) -> "VectorSet":
    """Return the vector set with a name. By protocol 3, scores are numbers."""
    limits: Any = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "retry": Retry(NoBackoff(), 0)}
    return VectorSet(Redis.from_url(url, password=password or None, protocol=3, **limits), name)


class VectorSet:
    """A vector set, whose elements are the numbers of the rows; its hash has the document of each number.

    Each field of a row has the attribute `h<field>`, which is 1 if the row has a value, because a filter of Redis is
    false wherever it names an attribute that is missing.
    """

    outages, refusals = (ConnectionError, TimeoutError), (RedisError,)

    def __init__(self, redis: Any, name: str):  # the client has no types of the commands that it sends as they are
        self._redis = redis
        self._vectors, self._documents, self._fields = (
            f"shoal:{{index:{name}}}:{part}" for part in ("vectors", "documents", "fields")
        )

    def create(self, dimension: int, fields: Mapping[str, type]) -> None:
        """Note the fields, because each row needs all of them. The first row makes the vector set."""
        empty: dict[str, Any] = {key: [] if is_list(key) else "" if kind is str else 0 for key, kind in fields.items()}
        self._redis.set(self._fields, json.dumps(empty))

    def count(self) -> int:
        """Return the number of rows; 0 if there is no vector set."""
        return int(self._redis.execute_command("VCARD", self._vectors))

    def add(self, rows: Rows) -> None:
        """Write the documents, and then the vectors, in one round trip."""
        empty = json.loads(self._redis.get(self._fields) or "{}")
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hset(self._documents, mapping={rows.first + n: one for n, one in enumerate(rows.documents)})
        for row, (vector, fields) in enumerate(zip(rows.vectors, rows.values, strict=True), rows.first):
            attributes = empty | fields | {f"h{key}": int(key in fields) for key in empty}
            own = ("VADD", self._vectors, "FP32", vector.tobytes(), row, "NOQUANT", "SETATTR", json.dumps(attributes))
            pipeline.execute_command(*own)
        pipeline.execute()

    def finish(self) -> None:
        """Do nothing, because Redis indexes each vector as it comes."""

    def search(self, queries: NDArray[np.float32], k: int, wanted: Filter | None) -> Found:
        """Return the nearest rows, from two round trips: one for the rows, and one for their documents."""
        options: tuple[Any, ...] = ("WITHSCORES", "COUNT", k, "EF", max(k, EF_SEARCH))
        if wanted is not None:
            options += ("FILTER", _expression(wanted), "FILTER-EF", MAX_VISITED)
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.execute_command("VCARD", self._vectors)
        for query in queries:
            pipeline.execute_command("VSIM", self._vectors, "FP32", query.tobytes(), *options)
        count, *answers = pipeline.execute()
        if not count:
            raise LookupError("there is no such vector set")
        rows = list({row: None for scores in answers for row in scores})
        documents = dict(zip(rows, self._redis.hmget(self._documents, rows), strict=True)) if rows else {}
        # Redis returns the similarity (1 + cosine) / 2.
        return [[(2 * score - 1, documents[row].decode()) for row, score in scores.items()] for scores in answers]

    def drop(self) -> None:
        """Delete the vector set and its documents, in the background of Redis."""
        self._redis.unlink(self._vectors, self._documents, self._fields)


def _expression(wanted: Filter) -> str:
    """Return the filter as an expression of Redis. Raises InvalidRequest for a range of a field with lists."""
    match wanted:
        case All(parts):
            return " and ".join(f"({_expression(part)})" for part in parts) or "1"
        case AnyOf(parts):
            return " or ".join(f"({_expression(part)})" for part in parts) or "0"
        case Not(part):
            return f"not ({_expression(part)})"
        case Exists(key):
            return f".h{key}"
        case OneOf(key, values) if is_list(key):
            return " or ".join(f"{json.dumps(value)} in .{key}" for value in values)
        case OneOf(key, values):
            return f".h{key} and ({' or '.join(f'.{key} == {json.dumps(value)}' for value in values)})"
        case Between(key, _, place) if is_list(key):
            raise InvalidRequest(f"{place}: some documents have several values, of which redis compares no ranges")
        case Between(key, bounds):
            return " and ".join([f".h{key}", *(f".{key} {_OPERATORS[name]} {value!r}" for name, value in bounds)])
