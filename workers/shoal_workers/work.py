"""One job on its way through a worker."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.cache.entry import Entry
from shoal.errors import Internal, ShoalError
from shoal.jobs import Job
from shoal.queue.delivery import Answer, Delivery
from shoal.replies import TIMINGS, Reply, finish
from shoal_workers.encoding.encoder import Row


@dataclass(slots=True, eq=False)
class Work:
    """A job that was taken, what its texts became, and how long each step took; or the `error` that kept it from that.

    A text is `found` in the cache or has a row, both by its number; texts that repeat share their row. `digests` are
    those of all texts, or none if the job is not for the cache.
    """

    delivery: Delivery
    job: Job
    prompt: str = ""
    digests: list[bytes] = field(default_factory=list)
    found: dict[int, Entry] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    hits: list[list[dict[str, Any]]] | None = None
    error: ShoalError | None = None
    timings: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIMINGS, 0.0))

    @property
    def missing(self) -> list[int]:
        """Numbers of the texts that are to be encoded."""
        return [n for n in range(len(self.job.texts)) if n not in self.found]

    @property
    def gives_way(self) -> bool:
        """Whether interactive jobs may go in between: not if it may have killed a worker, then it is to run alone.

        So do jobs of bulk, and those that are at the back of a lane because they are long or one of many.
        """
        return (self.delivery.lane == "bulk" or self.delivery.is_overflow) and self.delivery.num_deliveries == 1

    @property
    def is_encoded(self) -> bool:
        """Whether every row has its vectors or has failed."""
        return all(row.vectors is not None or row.error is not None for row in self.rows.values())

    def check_rows(self) -> None:
        """Sets the error if a row could not be encoded."""
        failed = {n: row.error for n, row in self.rows.items() if row.error is not None}
        if failed:
            self.fail(f"the engine failed on text {', '.join(map(str, failed))}", next(iter(failed.values())))

    def fail(self, what: str, cause: Exception) -> None:
        """Sets the error: what happened, and what no one foresaw."""
        self.error = Internal(f"{what}; the worker's log says how: leave the text out or report it")
        self.error.__cause__ = cause

    def recall(self, entries: Sequence[Entry | None]) -> None:
        """Takes what the cache has of the texts.

        A job that refuses what is too long takes all or nothing: the error is to name the text by its number.
        """
        options = self.job.options
        found = {n: entry for n, entry in enumerate(entries) if entry is not None and entry.answers(options)}
        if options.truncate or len(found) == len(entries):
            self.found = found

    def entries(self) -> list[Entry]:
        """What each text became, once all rows are encoded."""
        return [self.found.get(n) or _entry(self.rows[n]) for n in range(len(self.job.texts))]

    def news(self) -> dict[bytes, Entry]:
        """What the cache did not have, by digest."""
        rows = {self.digests[n]: row for n, row in self.rows.items()} if self.digests else {}
        return {digest: _entry(row) for digest, row in rows.items() if row.vectors is not None}

    def vectors(self) -> NDArray[np.float32]:
        """The finished vectors, as the job's options ask for them."""
        return finish([entry.vectors for entry in self.entries()], self.job.options)

    def answer(self, model: str) -> Answer:
        """The reply of a job without error, and where it goes."""
        entries = self.entries()
        reply = Reply(
            id=self.job.id,
            vectors=self.vectors() if self.hits is None else None,
            tokens=[entry.num_tokens for entry in entries],
            truncated=[entry.truncated for entry in entries],
            hits=self.hits,
            timings=self.timings,
            cached=len(self.found),
            model=model,
        )
        return Answer(self.delivery, reply, self.job.reply_to)


def _entry(row: Row) -> Entry:
    assert row.vectors is not None
    return Entry(row.vectors, row.num_tokens, row.tokens.truncated)
