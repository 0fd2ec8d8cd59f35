"""Replies: a worker's answer to a job, with vectors, hits or scores, or an error."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from types import NoneType
from typing import Any, Literal, NamedTuple, Self, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from shoal.contract import wire
from shoal.contract.checks import MAX_NAME_CHARS, is_header_text
from shoal.contract.excerpt import excerpt, kind
from shoal.contract.vectors import PACK, UNPACK, SparseVector, are_counts
from shoal.errors import BY_CODE, InvalidText, MalformedJob, ModelMismatch, NotReady, ShoalError

#: The timings of a reply, in seconds: for waiting in the lane, tokenizing, encoding and searching.
TIMINGS = ("queue_s", "tokenize_s", "encode_s", "search_s")

#: The HTTP header with the fingerprint that a request asks for, or with the fingerprint of the model that answered.
FINGERPRINT_HEADER = "X-Model-Fingerprint"

#: The fields of each chunk in a reply. If chunks are rows of numbers, the columns have this order.
CHUNK_COLUMNS = ("start", "stop", "tokens")

Status = Literal["queued", "running", "done", "failed", "cancelled", "expired"]

#: All statuses of a job; the last four are final.
STATUSES: tuple[str, ...] = get_args(Status)


class Chunk(NamedTuple):
    """The chunk `text[start:stop]` of a text, its number of tokens, and its vector, float32 `[dimension]`."""

    start: int
    stop: int
    tokens: int
    vector: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one job. docs/protocol.md describes its fields.

    `vectors` is float32 `[texts, dimension]`; with `output` "tokens" it has a row for each token, and with "chunks" a
    row for each chunk. `sparse` and `multivectors` have an item for each text: a sparse vector, or float32 `[vectors,
    dimension]`. `scores` is float32 `[texts]`. `characters`, `index_version` and `fingerprint` are empty if the
    worker's version does not send them. A reply with an `error` has no other fields except its id and status.
    """

    id: str
    status: str = "done"
    vectors: NDArray[np.float32] | None = None
    output: str = "vector"
    sparse: list[SparseVector] | None = None
    multivectors: list[NDArray[np.float32]] | None = None
    tokens: list[int] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    characters: list[int] = field(default_factory=list)
    hits: list[list[dict[str, Any]]] | None = None
    index_version: str = ""
    cursors: list[str | None] | None = None
    totals: list[int] | None = None
    facets: list[dict[str, Any]] | None = None
    scores: NDArray[np.float32] | None = None
    pieces: list[list[dict[str, Any]]] | None = None
    decoded: list[str] | None = None
    chunks: list[list[dict[str, Any]]] | None = None
    timings: dict[str, float] = field(default_factory=dict)
    cached: int = 0
    model: str = ""
    fingerprint: str = ""
    ignored: list[str] = field(default_factory=list)
    error: ShoalError | None = None

    @classmethod
    def failure(cls, job_id: str, error: ShoalError) -> Self:
        """Return the reply to a job that ended with `error`."""
        return cls(job_id, status=error.code if error.code in ("cancelled", "expired") else "failed", error=error)

    def pack(self) -> bytes:
        """Return the reply as msgpack (docs/protocol.md)."""
        values: dict[str, Any] = {"v": wire.VERSION, "id": self.id, "status": self.status}
        if self.error is not None:
            return wire.pack(values | {"error": {"code": self.error.code, "message": self.error.message}})
        values |= {"model": self.model, "tokens": self.tokens, "truncated": self.truncated}
        values |= {"characters": self.characters, "timings": self.timings, "cached": self.cached}
        if self.fingerprint:
            values["fingerprint"] = self.fingerprint
        if self.vectors is not None:
            values["output"] = self.output
        values |= self.packed_vectors()
        if self.index_version:
            values["index_version"] = self.index_version
        if self.ignored:
            values["ignored"] = self.ignored
        if self.scores is not None:
            values["scores"] = self.scores.tolist()
        values |= {name: part for name in _IF_ASKED if (part := getattr(self, name)) is not None}
        return wire.pack(values)

    def packed_vectors(self) -> dict[str, dict[str, Any]]:
        """Return the vectors, sparse vectors and multivectors that the reply has as maps of bytes, by their fields."""
        found = {"vectors": self.vectors, "sparse": self.sparse, "multivectors": self.multivectors}
        return {name: PACK[name](value) for name, value in found.items() if value is not None}

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Return the reply in `data`, with read-only vectors. Raises MalformedJob."""
        try:
            values = wire.unpack(data)
        except InvalidText as error:
            raise MalformedJob(f"the reply is not of the documented shape ({error!s:.200})") from error
        return cls.from_map(values)

    @classmethod
    def from_map(cls, values: Mapping[str, Any]) -> Self:
        """Return the reply that has these unpacked values. Unknown fields are ignored. Raises MalformedJob."""
        try:
            if error := values.get("error"):
                code, message = (_typed(name, error[name], str) for name in ("code", "message"))
                return cls.failure(_typed("id", values["id"], str), BY_CODE.get(code, ShoalError)(message))
            known = {name: value for name, value in values.items() if name in _CHECKS}
            for name, value in known.items():
                if not _CHECKS[name](value):
                    raise TypeError(f"{name} is {kind(value)}, or has items that it cannot have")
            arrays = {name: unpack(values[name]) for name, unpack in UNPACK.items() if values.get(name) is not None}
            scores = values.get("scores")
            if scores is not None:
                with np.errstate(over="ignore"):
                    numbers = [_typed("a score", value, float) for value in _typed("scores", scores, list)]
                    scores = np.array(numbers, np.float32)
            return cls(**known, **arrays, scores=scores)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise MalformedJob(f"the reply is not of the documented shape ({error!s:.200})") from error

    @classmethod
    def join(cls, replies: Sequence["Reply"]) -> "Reply":
        """Join the replies to the parts of a job, in order. Each timing is the longest among the parts.

        Raises the error of the first part with an error, and NotReady if the parts have different models, fingerprints
        or versions of an index, because such parts cannot be compared.
        """
        for reply in replies:
            if reply.error is not None:
                raise reply.error
        first = replies[0]
        if len(replies) == 1:
            return first
        fingerprint = next((reply.fingerprint for reply in replies if reply.fingerprint), "")
        version = next((reply.index_version for reply in replies if reply.index_version), "")
        first = replace(first, fingerprint=fingerprint, index_version=version)  # an older worker sends neither
        vectors = None if first.vectors is None else [_present(r.vectors) for r in replies]
        for reply in replies:
            _check_alike(first, reply)
        asked: dict[str, Any] = {name: _joined(replies, name) for name in (*_IF_ASKED, "sparse", "multivectors")}
        return cls(
            first.id,
            vectors=None if vectors is None else np.concatenate(vectors),
            output=first.output,
            tokens=[count for r in replies for count in r.tokens],
            truncated=[flag for r in replies for flag in r.truncated],
            characters=[count for r in replies for count in r.characters] if all(r.characters for r in replies) else [],
            index_version=version,
            scores=None if first.scores is None else np.concatenate([_present(r.scores) for r in replies]),
            timings={name: max(r.timings.get(name, 0.0) for r in replies) for name in TIMINGS},
            cached=sum(r.cached for r in replies),
            model=first.model,
            fingerprint=fingerprint,
            ignored=first.ignored,
            **asked,
        )

    def is_like(self, other: "Reply") -> bool:
        """Return False if the two replies have different fingerprints, or different versions of an index."""
        versions = {self.index_version, other.index_version}
        return self.has_fingerprint(other) and ("" in versions or len(versions) == 1)

    def has_fingerprint(self, of: "Reply") -> bool:
        """Return False if the two replies have different fingerprints. An empty fingerprint matches every other."""
        return "" in (self.fingerprint, of.fingerprint) or self.fingerprint == of.fingerprint

    def of_pinned(self, fingerprint: str | None) -> "Reply":
        """Return the reply, or one with the error ModelMismatch if it lacks the wanted fingerprint."""
        if not fingerprint or self.error or self.fingerprint == fingerprint:
            return self
        return self.failure(self.id, other_fingerprint(fingerprint, self.model, self.fingerprint))

    def rows_by_text(self) -> list[NDArray[np.float32]]:
        """Return the vectors of tokens or chunks, as an array `[vectors, dimension]` for each text."""
        counts = self.tokens if self.chunks is None else [len(part) for part in self.chunks]
        return np.split(_present(self.vectors), np.cumsum(counts)[:-1])

    def output_of(self, word: str) -> Any:
        """Return an item of the output for each text. Raises MalformedJob if the reply lacks the output."""
        if word in OUTPUT_FIELDS:
            return _present(getattr(self, OUTPUT_FIELDS[word]))
        return self.chunks_by_text() if word == "chunks" else self.rows_by_text()

    @property
    def num_bytes(self) -> int:
        """The number of bytes of all vectors."""
        arrays = [array for vector in self.sparse or () for array in vector] + (self.multivectors or [])
        return sum(array.nbytes for array in arrays) + (0 if self.vectors is None else self.vectors.nbytes)

    def chunks_by_text(self) -> list[list[Chunk]]:
        """Return the chunks of each text, in order. Raises MalformedJob if the reply has no chunks."""
        pairs = zip(_present(self.chunks), self.rows_by_text(), strict=True)
        try:
            return [
                [Chunk(m["start"], m["stop"], m["tokens"], row) for m, row in zip(part, rows, strict=True)]
                for part, rows in pairs
            ]
        except (KeyError, ValueError) as error:
            raise MalformedJob(f"the chunks of the reply are not of the documented shape ({error!s:.200})") from error


T = TypeVar("T")

#: The fields that a reply has only if the job asked for them.
_IF_ASKED = ("hits", "pieces", "decoded", "chunks", "cursors", "totals", "facets")

#: The fields of a reply for the outputs that a list may have.
OUTPUT_FIELDS = {"vector": "vectors", "sparse": "sparse", "multivector": "multivectors"}


def _is(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _list_of(is_item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and all(map(is_item, value))


def _if_asked(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


def _are_flags(value: Any) -> bool:
    return type(value) is list and all([type(flag) is bool for flag in value])


def _are_timings(value: Any) -> bool:
    return type(value) is dict and all([isinstance(t_s, float | int) and isfinite(t_s) for t_s in value.values()])


_are_maps = _if_asked(_list_of(_list_of(_is(dict))))

#: A check for each field of a reply, except arrays of numbers. Other fields are ignored.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "id": _is(str),
    "status": _is(str),
    "output": _is(str),
    "tokens": are_counts,
    "truncated": _are_flags,
    "characters": are_counts,
    "hits": _are_maps,
    "index_version": _is(str),
    "cursors": _if_asked(_list_of(_is(str, NoneType))),
    "totals": _if_asked(_list_of(lambda total: type(total) is int and total >= 0)),
    "facets": _if_asked(_list_of(_is(dict))),
    "pieces": _are_maps,
    "decoded": _if_asked(_list_of(_is(str))),
    "chunks": _are_maps,
    "timings": _are_timings,
    "cached": _is(int),
    "model": _is(str),
    "fingerprint": lambda value: isinstance(value, str) and len(value) <= MAX_NAME_CHARS and is_header_text(value),
    "ignored": _list_of(_is(str)),
}


def _typed(name: str, value: Any, type_: Any) -> Any:
    if not isinstance(value, type_):
        raise TypeError(f"{name} is {kind(value)}")
    return value


def _check_alike(first: Reply, other: Reply) -> None:
    """Raise NotReady if two parts of a reply have different models, dimensions, or versions of an index."""
    described, another = _describe_model(first), _describe_model(other)
    if described == another and not other.has_fingerprint(first):
        described, another = f"{described} ({first.fingerprint:.12})", f"{another} ({other.fingerprint:.12})"
    if described != another:
        raise NotReady(
            f"parts of the reply are of different models, {described} and {another}: "
            "send it again when all workers serve the same model"
        )
    versions = (first.index_version, other.index_version)
    if all(versions) and len(set(versions)) > 1:
        raise NotReady(
            f"parts of the reply are of the versions {versions[0]} and {versions[1]} of the index: "
            "send it again when all workers serve the same version"
        )


def other_fingerprint(wanted: str, model: str, fingerprint: str) -> ModelMismatch:
    """Return the error for a job that needs the `wanted` fingerprint, and was answered with another or with none."""
    answered = f"{excerpt(model) if model else 'the model that answered'} has {fingerprint}"
    return ModelMismatch(
        f"the request needs the model with fingerprint {excerpt(wanted)}, and "
        f"{answered if fingerprint else 'the worker that answered names none'}: start workers with that model, or "
        "compute all vectors anew"
    )


def _describe_model(reply: Reply) -> str:
    dimension = "" if reply.vectors is None else f" of {reply.vectors.shape[1]:,} dimensions"
    return excerpt(reply.model) + dimension


def _joined(replies: Sequence[Reply], name: str) -> list[Any] | None:
    lists = [getattr(reply, name) for reply in replies]
    return None if lists[0] is None else [item for part in lists for item in _present(part)]


def _present(value: T | None) -> T:
    if value is None:
        raise MalformedJob("a part of the reply lacks a field of the other parts")
    return value
