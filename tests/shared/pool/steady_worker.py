"""A worker whose vectors depend on the text alone. A real worker's rounding also depends on the pass's other texts."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b

import numpy as np
from conftest import repeating
from numpy.typing import NDArray
from queues import Queue

from shoal.contract.jobs import LANES, Job
from shoal.contract.replies import Reply
from shoal.errors import Internal, ShoalError, TextTooLong
from shoal.queue.consumer import Answer

MODEL, DIMENSION, FINGERPRINT = "steady", 8, "f1"

#: The worker treats a text that contains these words as too long.
TOO_LONG = "too long"

#: The worker fails at a text that contains this word.
BROKEN = "broken"


def vectors_of(texts: list[str]) -> NDArray[np.float32]:
    """Return the vectors of the texts, float32 `[texts, DIMENSION]`."""
    numbers = [np.frombuffer(blake2b(text.encode(), digest_size=DIMENSION).digest(), np.uint8) for text in texts]
    return np.array(numbers, np.float32).reshape(-1, DIMENSION)


class SteadyWorker:
    """A worker that a test steps by hand or runs in a thread. After `max_jobs` answers, jobs stay in their lane."""

    def __init__(self, queue: Queue, max_jobs: int = 2**31, digest: str = "d1"):
        self.queue = queue
        self.max_jobs = max_jobs
        self.about = {"state": "ready", "model": MODEL, "digest": digest, "dimension": DIMENSION}
        self.about["fingerprint"] = FINGERPRINT
        self.num_answered = 0
        self._answers: list[Answer] = []  # answers that Redis does not have yet

    def announce(self) -> None:
        """Announce the worker to the pool."""
        self.queue.pool.announce("steady", self.about)

    def step(self) -> None:
        """Announce the worker, and answer waiting jobs."""
        self.announce()
        if self.num_answered >= self.max_jobs:
            return
        for delivery in [] if self._answers else self.queue.take("steady", LANES, 1, 0.02):
            job = delivery.job()
            self._answers.append(Answer(delivery, steady_reply(job, str(self.about["model"])), job.reply_to))
        self.num_answered += self.queue.reply(self._answers)
        self._answers = []

    @contextmanager
    def running(self) -> Iterator["SteadyWorker"]:
        """Run the worker in a thread until the end of the `with`, even while Redis does not answer."""

        def serve() -> None:
            with suppress(ShoalError):
                self.step()

        self.announce()
        with repeating(serve, pause_s=0.001):
            yield self


def steady_reply(job: Job, model: str = MODEL) -> Reply:
    """Return the reply of a steady worker to the job."""
    if any(BROKEN in text for text in job.texts):
        return Reply.failure(job.id, Internal("a worker has failed"))
    if any(TOO_LONG in text for text in job.texts):
        return Reply.failure(job.id, TextTooLong("a text has too many tokens: shorten it"))
    ones = [1] * len(job.texts)
    reply = Reply(job.id, vectors=vectors_of(job.texts), tokens=ones, truncated=[False] * len(ones), model=model)
    return replace(reply, fingerprint=FINGERPRINT)
