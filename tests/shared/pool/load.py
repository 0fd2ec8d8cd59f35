"""A load of submitted jobs with known answers."""

import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

import numpy as np
from conftest import PATIENCE_S, WORDS, wait_until

from shoal import Client, Reply
from shoal.client.text_client import Handle
from shoal.errors import ShoalError, Unavailable

PAIRS = [f"{first} {second}" for first in WORDS for second in WORDS]


class Load:
    """Threads that submit jobs one after the other, and keep the accepted jobs and the errors."""

    def __init__(self, client: Client, num_threads: int = 4):
        self.accepted: list[Handle] = []
        self.errors: list[ShoalError] = []
        self._client = client
        self._texts: dict[str, int] = {}
        self._num_tried = [0] * num_threads
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._submit, args=(n,)) for n in range(num_threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def check(self, jobs: list[Handle]) -> None:
        """Fail the test unless each of the jobs gets the vector of its text."""
        vectors = self._client.embed(PAIRS)
        for job in jobs:
            found = _result(job).vectors
            assert found is not None
            np.testing.assert_allclose(found[0], vectors[self._texts[job.id]], atol=1e-4)

    def finish_submitting(self) -> None:
        """Wait until each submit that is now running has succeeded or failed."""
        before = list(self._num_tried)
        wait_until(lambda: all(now > then for now, then in zip(self._num_tried, before, strict=True)))

    def _submit(self, thread: int) -> None:
        while not self._stopped.wait(0.001):
            number = len(self._texts) % len(PAIRS)
            try:
                job = self._client.submit("embed", PAIRS[number])
            except ShoalError as error:
                self.errors.append(error)
            else:
                self._texts[job.id] = number
                self.accepted.append(job)
            self._num_tried[thread] += 1


def _result(job: Handle) -> Reply:
    """Return the reply to the job, even if Redis does not answer for a moment."""
    replies: list[Reply] = []

    def is_read() -> bool:
        with suppress(Unavailable):
            replies.append(job.result(PATIENCE_S))
        return bool(replies)

    wait_until(is_read)
    return replies[0]
