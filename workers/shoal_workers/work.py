"""One job on its way through a worker."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import Internal
from shoal.jobs import Job
from shoal.queue import Answer, Delivery
from shoal.replies import TIMINGS, Reply
from shoal_workers.encoder import Row, finish
from shoal_workers.tokenizer import Tokens


@dataclass(slots=True, eq=False)
class Work:
    """A job that was taken, what its texts became, and how long each step took. Texts that repeat share their row."""

    delivery: Delivery
    job: Job
    tokens: list[Tokens] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    hits: list[list[dict[str, Any]]] | None = None
    timings: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIMINGS, 0.0))

    @property
    def is_encoded(self) -> bool:
        """Whether every row has its vectors or has failed."""
        return all(row.vectors is not None or row.error is not None for row in self.rows)

    @property
    def has_failed(self) -> bool:
        """Whether a row could not be encoded."""
        return any(row.error is not None for row in self.rows)

    def vectors(self) -> NDArray[np.float32]:
        """The finished vectors, as the job's options ask for them."""
        return finish([row.vectors for row in self.rows if row.vectors is not None], self.job.options)

    def answer(self, model: str) -> Answer:
        """The reply, and where it goes."""
        if self.has_failed:
            numbers = ", ".join(str(n) for n, row in enumerate(self.rows) if row.error is not None)
            error = Internal(
                f"the engine failed on text {numbers}; the worker's log says how: leave the text out or report it"
            )
            return Answer(self.delivery, Reply.failure(self.job.id, error), self.job.reply_to)
        reply = Reply(
            id=self.job.id,
            vectors=self.vectors() if self.hits is None else None,
            tokens=[len(tokens.ids) for tokens in self.tokens],
            truncated=[tokens.truncated for tokens in self.tokens],
            hits=self.hits,
            timings=self.timings,
            model=model,
        )
        return Answer(self.delivery, reply, self.job.reply_to)
