"""Vector sets in Redis 8, at `redis://host:6379/0`, each beside a hash with the documents."""

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import redis
from numpy.typing import NDArray

from shoal.broker.connections import open_pool
from shoal.errors import InvalidRequest, Unavailable
from shoal_workers.index.engines.engine import Found
from shoal_workers.index.engines.fields import Bound, Language, joined

#: Least number of candidates that a search of the graph keeps.
EF_SEARCH = 100

#: Largest number of characters that a number in a filter of Redis may have.
MAX_NUMBER_CHARS = 255

#: With this option, Redis keeps float32 vectors. Its default, int8, would change scores by up to 0.002.
_FORM = "NOQUANT"


def _one_of(key: str, terms: Sequence[str | float]) -> str:
    return " or ".join(f"{json.dumps(term) if isinstance(term, str) else _number(term)} in .{key}" for term in terms)


def _between(key: str, bounds: Sequence[Bound]) -> str:
    ends = (f".{key}{'max' if operator[0] == '>' else 'min'} {operator} {_number(one)}" for operator, one in bounds)
    return " and ".join([f".{key}", *ends])


def _number(number: float) -> str:
    """Return a number in Redis's notation, in which an exponent has no sign. Raises InvalidRequest."""
    text = repr(number).replace("e+", "e")
    if "e-" in text:
        text = format(Decimal(text), "f")
    if len(text) > MAX_NUMBER_CHARS:
        raise InvalidRequest(f"filter: {number!r} has too many digits for a filter of redis: use a number nearer to 1")
    return text


def _attributes(values: Mapping[str, list[Any]]) -> str:
    """Return the attributes of a row. A missing value is null, because Redis's filters need each attribute."""
    attributes: dict[str, Any] = {}
    for key, own in values.items():
        attributes[key] = own or None
        if not own or not isinstance(own[0], str):
            attributes |= {f"{key}min": min(own, default=None), f"{key}max": max(own, default=None)}
    return json.dumps(attributes)


class Table:
    """A vector set, whose elements are the numbers of the rows, and a hash with the document of each number."""

    outages, refusals = (redis.ConnectionError, redis.TimeoutError, Unavailable), (redis.RedisError, LookupError)
    language = Language(joined(" and ", "1"), joined(" or ", "0"), "not ({})".format, ".{}".format, _one_of, _between)

    def __init__(self, url: str, name: str, password: str, timeout_s: int):
        parts = urlsplit(url)
        if password:
            user, _, host = parts.netloc.rpartition("@")
            parts = parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}")
        self._pool = open_pool(parts.geturl(), timeout_s)
        self._vectors, self._documents = (f"shoal:{{index:{name}}}:{part}" for part in ("vectors", "documents"))

    def create(self, dimension: int, types: Mapping[str, type]) -> None:
        """Check that Redis has vector sets. Adding the first row makes one."""
        try:
            self.count()
        except redis.ResponseError as error:
            if "unknown command" in str(error):
                raise InvalidRequest("this Redis has no vector sets: use Redis 8 or newer") from error
            raise

    def count(self) -> int:
        """Return the number of rows with a vector and a document; 0 if there is no vector set."""
        return int(min(self._ask(("VCARD", self._vectors), ("HLEN", self._documents))))

    def add(
        self, first: int, vectors: NDArray[np.float32], documents: Sequence[str], values: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write rows, numbered from `first`: the documents, and then the vectors."""
        rows = range(first, first + len(documents))
        pairs = (part for pair in zip(rows, documents, strict=True) for part in pair)
        self._ask(
            ("HSET", self._documents, *pairs),
            *(
                ("VADD", self._vectors, "FP32", vector.tobytes(), row, _FORM, "SETATTR", _attributes(own))
                for row, vector, own in zip(rows, np.asarray(vectors, "<f4"), values, strict=True)
            ),
        )

    def finish(self) -> None:
        """Do nothing, because Redis indexes each vector when it is added."""

    def search(self, queries: NDArray[np.float32], k: int, wanted: str | None) -> Found:
        """Return the `k` nearest rows that match a filter, for each query. If the graph yields fewer rows, scan all."""
        options = ("WITHSCORES", "COUNT", k, "EF", max(k, EF_SEARCH), *(("FILTER", wanted) if wanted else ()))
        for way in ((), ("TRUTH",)):
            searches = (("VSIM", self._vectors, "FP32", query.tobytes(), *options, *way) for query in queries)
            count, *answers = self._ask(("VCARD", self._vectors), *searches)
            if not count:
                raise LookupError("there is no such vector set")
            if all(len(answer) == 2 * k for answer in answers):
                break
        rows = list({row: None for answer in answers for row in answer[::2]})
        documents = dict(zip(rows, self._ask(("HMGET", self._documents, *rows))[0], strict=True)) if rows else {}
        if None in documents.values():
            raise LookupError("a row has no document")
        # Redis returns the similarity (1 + cosine) / 2.
        return [
            [(2 * float(score) - 1, documents[row].decode()) for row, score in zip(one[::2], one[1::2], strict=True)]
            for one in answers
        ]

    def drop(self) -> None:
        """Delete the vector set and its documents; Redis frees their memory in the background."""
        self._ask(("UNLINK", self._vectors, self._documents))

    def _ask(self, *commands: Sequence[Any]) -> list[Any]:
        """Return the answers to commands that are sent together. Raises the first error among the answers."""
        answers = self._pool.ask(commands)
        if error := next((answer for answer in answers if isinstance(answer, Exception)), None):
            raise error
        return answers
