"""Replies: what a worker answers to a job."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal import wire
from shoal.errors import BY_CODE, InvalidText, MalformedJob, ShoalError
from shoal.jobs import Options

#: The four timings of a reply, in seconds: waiting in the lane, then three steps that a batch takes together.
TIMINGS = ("queue_s", "tokenize_s", "encode_s", "search_s")

#: All statuses a job can have; the last four are final.
STATUSES = ("queued", "running", "done", "failed", "cancelled", "expired")

#: The final status that goes with an error code; every other code goes with `failed`.
_STATUS_OF_CODE = {"cancelled": "cancelled", "expired": "expired"}


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one job.

    `vectors` is float32 `[texts, dimension]`, or `[sum(tokens), dimension]` when token vectors were asked for: then
    `tokens` says how many rows each text has. `hits` has one list per query, best first. `cached` counts the texts that
    were not computed for it. A reply with an `error` has nothing else.
    """

    id: str
    status: str = "done"
    vectors: NDArray[np.float32] | None = None
    tokens: list[int] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    hits: list[list[dict[str, Any]]] | None = None
    timings: dict[str, float] = field(default_factory=dict)
    cached: int = 0
    model: str = ""
    error: ShoalError | None = None

    @classmethod
    def failure(cls, job_id: str, error: ShoalError) -> Self:
        """The reply that carries `error`."""
        return cls(job_id, status=_STATUS_OF_CODE.get(error.code, "failed"), error=error)

    def pack(self) -> bytes:
        """The reply as it travels (docs/protocol.md)."""
        values: dict[str, Any] = {"v": wire.VERSION, "id": self.id, "status": self.status}
        if self.error is not None:
            return wire.pack(values | {"error": {"code": self.error.code, "message": self.error.message}})
        values |= {"model": self.model, "tokens": self.tokens, "truncated": self.truncated}
        values |= {"timings": self.timings, "cached": self.cached}
        if self.vectors is not None:
            values["vectors"] = pack_vectors(self.vectors)
        if self.hits is not None:
            values["hits"] = self.hits
        return wire.pack(values)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """The reply in `data`; its vectors are a read-only view of the bytes, not a copy.

        Raises MalformedJob when the bytes are no reply.
        """
        try:
            values = wire.unpack(data)
            if error := values.get("error"):
                words = [_typed(str, word) for word in (values["id"], error["code"], error["message"])]
                return cls.failure(words[0], BY_CODE.get(words[1], ShoalError)(words[2]))
            known = {name: _typed(kind, values[name]) for name, kind in _TYPES.items() if name in values}
            vectors = values.get("vectors")
            reply = cls(**known, vectors=None if vectors is None else unpack_vectors(vectors))
        except (KeyError, TypeError, ValueError, OverflowError, InvalidText) as error:
            raise MalformedJob(f"the reply is not of the documented shape: {error!r:.200}") from error
        if not reply._is_sound():
            raise MalformedJob("the reply is not of the documented shape: what is in its fields does not go together")
        return reply

    def _is_sound(self) -> bool:
        """Whether what is in the fields is of the types and numbers that it should be."""
        tokens, hits = self.tokens, self.hits
        return (
            all([type(count) is int and 0 <= count < 2**31 for count in tokens])
            and all([type(flag) is bool for flag in self.truncated])
            and all([isinstance(time_s, float | int) for time_s in self.timings.values()])
            and (hits is None or all([type(found) is list and all([type(h) is dict for h in found]) for found in hits]))
        )

    @classmethod
    def join(cls, replies: Sequence["Reply"]) -> "Reply":
        """One reply out of the replies to the parts of a job, in order.

        Timings are the longest of the parts: they ran side by side. Raises the first part's error, if one has any.
        """
        for reply in replies:
            if reply.error is not None:
                raise reply.error
        first = replies[0]
        if len(replies) == 1:
            return first
        return cls(
            first.id,
            vectors=None if first.vectors is None else np.concatenate([_present(r.vectors) for r in replies]),
            tokens=[count for r in replies for count in r.tokens],
            truncated=[flag for r in replies for flag in r.truncated],
            hits=None if first.hits is None else [hits for r in replies for hits in _present(r.hits)],
            timings={name: max(r.timings.get(name, 0.0) for r in replies) for name in TIMINGS},
            cached=sum(r.cached for r in replies),
            model=first.model,
        )

    def rows_by_text(self) -> list[NDArray[np.float32]]:
        """Token vectors as one `[tokens, dimension]` array a text."""
        return np.split(_present(self.vectors), np.cumsum(self.tokens)[:-1])


_TYPES: dict[str, Any] = {
    "id": str,
    "status": str,
    "tokens": list,
    "truncated": list,
    "hits": list | None,
    "timings": dict,
    "cached": int,
    "model": str,
}


T = TypeVar("T")


def _typed(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a field is a {type(value).__name__}, and not {kind}")
    return value


def _present(value: T | None) -> T:
    if value is None:
        raise MalformedJob("a part of the reply lacks what the other parts have")
    return value


def finish(vectors: Sequence[NDArray[np.float32]], options: Options) -> NDArray[np.float32]:
    """The rows stacked, cut to some dimensions and normalised, as the options say: float32 `[rows, dimension]`.

    Each row comes out the same, to the bit, whatever other rows are with it.
    """
    stacked = np.concatenate(vectors)[:, : options.dimensions]
    if options.normalize:
        stacked = stacked / np.maximum(np.linalg.norm(stacked, axis=1, keepdims=True), 1e-12)
    return np.ascontiguousarray(stacked, dtype=np.float32)


def pack_vectors(vectors: NDArray[np.float32]) -> dict[str, Any]:
    """A map of raw little-endian bytes with their dtype and shape."""
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    return {"dtype": "float32", "shape": list(rows.shape), "data": rows.data.cast("B") if rows.size else b""}


def unpack_vectors(values: dict[str, Any]) -> NDArray[np.float32]:
    """The array in a map made by `pack_vectors`."""
    if (dtype := _typed(str, values["dtype"])) != "float32":
        raise MalformedJob(f"vectors have dtype {dtype!r:.50}: this version knows float32")
    num_rows, dimension = values["shape"]
    return np.frombuffer(values["data"], dtype="<f4").reshape(max(0, num_rows), max(0, dimension))
