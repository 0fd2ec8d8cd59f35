"""The calls of clients for long jobs, whichever way they reach them, and the wait for the end of one."""

import math
import time
from collections.abc import Callable
from typing import Protocol

from shoal.errors import Timeout, Unavailable
from shoal.long_jobs.status import LongJobStatus

#: Is called with each state of a job that is seen.
OnStatus = Callable[[LongJobStatus], object]

#: Seconds between two looks at a job that is waited for: the first of them, and the most.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 0.5

#: Seconds for which a wait goes on while Redis or the API does not answer.
MAX_AWAY_S = 60.0


class LongJobCalls(Protocol):
    """The calls for long jobs, through Redis or over HTTP; each blocks the thread until it is answered."""

    def status(self, job_id: str) -> LongJobStatus:
        """Return the state of a job; raise UnknownJob if there is none."""

    def pause(self, job_id: str) -> str:
        """Stop a job for a while; return its status."""

    def resume(self, job_id: str) -> str:
        """Let a paused job go on; return its status."""

    def cancel(self, job_id: str) -> str:
        """End a job for good; return its status."""

    def delete(self, job_id: str) -> None:
        """Forget a job that has ended; raise JobNotEnded for one that has not."""


class LongWait:
    """The wait for the end of a long job: what each look at its state means, and when the next one is due.

    Without `timeout_s` it takes any time.
    """

    def __init__(self, job_id: str, timeout_s: float | None, on_status: OnStatus | None):
        self._job_id = job_id
        self._timeout_s = timeout_s
        self._on_status = on_status
        self._until = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
        self._answered_at, self._pause_s = -math.inf, FIRST_PAUSE_S

    def saw(self, status: LongJobStatus) -> bool:
        """Take a state; return True if the job is done. Raises the error of a job that failed, and Cancelled."""
        self._answered_at = time.monotonic()
        if self._on_status:
            self._on_status(status)
        if error := status.failure():
            raise error
        return status.has_ended

    def missed(self, error: Unavailable) -> None:
        """Take it that there was no answer; raise the error if there was none at first, or for `MAX_AWAY_S`."""
        if time.monotonic() - self._answered_at > MAX_AWAY_S:
            raise error

    def pause_s(self) -> float:
        """Return the seconds until the next look; raise Timeout if the time is over."""
        if (left_s := self._until - time.monotonic()) <= 0:
            raise Timeout(f"job {self._job_id} is not done after {self._timeout_s:g} s: it goes on, wait again")
        pause_s, self._pause_s = self._pause_s, min(MAX_PAUSE_S, 2 * self._pause_s)
        return min(pause_s, left_s)
