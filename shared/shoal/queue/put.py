"""Putting jobs into a lane: what goes in, and what becomes of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from shoal.broker.connections import translated
from shoal.errors import InvalidRequest, Overloaded
from shoal.jobs import Job
from shoal.queue.lane import LaneLimits

#: Texts that one client may have at the front of a lane; what does not fit there goes to the back, and so does a job
#: that is longer than an eighth of it. As many as an API has room for: a client that is alone is served in turn.
MAX_FRONT_TEXTS = 256

#: Longest that anybody is asked to wait before trying again.
MAX_RETRY_S = 60


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """An idempotency key, as a name for Redis, and the digest of what is asked with it."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """Where a job is: an entry of a stream of its lane."""

    stream: str
    entry: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """Jobs on their way into a lane, and their bytes: packed by whoever asks, so that a bad text is its own failure.

    `client` is whose jobs they are: no client can keep others from being served.
    """

    lane: str
    jobs: Sequence[Job]
    data: Sequence[bytes]
    has_records: bool
    client: str = ""
    once: IdempotencyKey | None = None

    @classmethod
    def pack(
        cls,
        lane: str,
        jobs: Sequence[Job],
        reply_to: str | None = None,
        client: str = "",
        once: IdempotencyKey | None = None,
    ) -> Self:
        """The jobs, packed, with `reply_to` for their reply address; jobs without one get a record each.

        Raises InvalidText.
        """
        has_records = not (reply_to or jobs[0].reply_to)
        return cls(lane, jobs, [job.pack(reply_to) for job in jobs], has_records, client, once)

    @property
    def size(self) -> tuple[int, int, int]:
        """Jobs, texts and bytes."""
        return len(self.jobs), sum(len(job.texts) for job in self.jobs), sum(map(len, self.data))


@dataclass(frozen=True, slots=True)
class PutOutcome:
    """What became of a put: what Redis answered, or the error. `texts_per_s` is how fast the pool answers."""

    put: Put
    outcome: Any
    bounds: LaneLimits
    texts_per_s: float = 0.0

    def check(self) -> list[tuple[int, bytes]]:
        """For each job whether it is at the front (0), the back (1) or was put before (-1), and its entry or id.

        Raises Overloaded or Unavailable if the jobs were refused, InvalidRequest if the idempotency key was used for
        something else.
        """
        if not isinstance(self.outcome, Exception):
            return list(zip(self.outcome[::2], self.outcome[1::2], strict=True))
        word, *details = str(self.outcome).split()
        if word == "FULL":
            raise self._overloaded(*map(float, details))
        if word == "REUSED":
            raise InvalidRequest(f"the idempotency key was used for job {details[0]}, which asks something else")
        with translated():
            raise self.outcome

    @property
    def is_full(self) -> bool:
        """Whether the lane had no room."""
        return isinstance(self.outcome, Exception) and str(self.outcome).startswith("FULL")

    def _overloaded(self, share: float, *held: float) -> Overloaded:
        bounds = (self.bounds.max_jobs, self.bounds.max_texts, self.bounds.max_bytes)
        parts = [
            (has + more - share * most) / max(has, 1)
            for has, more, most in zip(held, self.put.size, bounds, strict=True)
        ]
        wait_s = max(0.0, max(parts)) * held[1] / self.texts_per_s if self.texts_per_s else MAX_RETRY_S
        retry_after_s = max(1, min(MAX_RETRY_S, math.ceil(wait_s)))
        num_jobs, num_texts, num_bytes = map(int, held)
        return Overloaded(
            f"no room in the {self.put.lane} lane, which holds {num_jobs:,} unanswered jobs with {num_texts:,} texts "
            f"and {num_bytes:,} bytes: try again in {retry_after_s} s, or send less at a time",
            retry_after_s,
        )
