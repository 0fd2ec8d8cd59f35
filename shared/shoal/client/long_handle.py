"""The handles of long jobs and of indexes, whichever way a client reaches them."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.errors import BY_CODE, Cancelled, Internal, Timeout, Unavailable
from shoal.long_jobs.status import LongJobStatus, Progress

#: Seconds between two looks at a job that is waited for: the first of them, and the most.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 0.5

#: Seconds for which a wait goes on while Redis or the API does not answer.
MAX_AWAY_S = 60.0

#: Longest time for a change of an index's versions, which waits behind others.
CHANGE_TIMEOUT_S = 30.0


class LongJobCalls(Protocol):
    """The calls for long jobs, through Redis or over HTTP."""

    def status(self, job_id: str) -> LongJobStatus:
        """Return the state of a job; raise UnknownJob if there is none."""

    def pause(self, job_id: str) -> str:
        """Stop a job for a while; return its status."""

    def resume(self, job_id: str) -> str:
        """Let a paused job go on; return its status."""

    def cancel(self, job_id: str) -> str:
        """End a job for good; return its status."""


@dataclass(frozen=True, slots=True)
class LongHandle:
    """A long job that was submitted. Thread-safe."""

    jobs: LongJobCalls
    id: str

    def status(self) -> str:
        """Return one of queued, running, paused, done, failed and cancelled."""
        return self.jobs.status(self.id).status

    def progress(self) -> Progress:
        """Return the progress: rows, bad rows with the first messages, fraction, rows a second and seconds left."""
        return self.jobs.status(self.id).progress

    def wait(
        self, timeout_s: float | None = None, on_status: Callable[[LongJobStatus], object] | None = None
    ) -> dict[str, Any]:
        """Return the job's result once it is done; without `timeout_s`, wait for any time.

        `on_status` is called with each state that is seen, about twice a second. While Redis or the API does not
        answer, it is asked again for up to a minute. Raises the error of a job that failed, Cancelled, and Timeout.
        """
        until_s = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
        answered_s, pause_s = -math.inf, FIRST_PAUSE_S
        while True:
            try:
                status = self.jobs.status(self.id)
            except Unavailable:
                if time.monotonic() - answered_s > MAX_AWAY_S:
                    raise
            else:
                answered_s = time.monotonic()
                if on_status:
                    on_status(status)
                if status.has_ended:
                    return _result(status)
            if (left_s := until_s - time.monotonic()) <= 0:
                raise Timeout(f"job {self.id} is not done after {timeout_s:g} s: it goes on, wait again")
            time.sleep(min(pause_s, left_s))
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)

    def pause(self) -> str:
        """Stop the job for a while, without losing what is done; return its status."""
        return self.jobs.pause(self.id)

    def resume(self) -> str:
        """Let the job go on if it is paused; return its status."""
        return self.jobs.resume(self.id)

    def cancel(self) -> str:
        """End the job for good; return its status. The files that it has written stay."""
        return self.jobs.cancel(self.id)


def _result(status: LongJobStatus) -> dict[str, Any]:
    """Return the result of a job that has ended, or raise its error."""
    if status.status == "cancelled":
        raise Cancelled(f"job {status.id} was cancelled")
    if status.error:
        raise BY_CODE.get(status.error["code"], Internal)(status.error["message"])
    return dict(status.result or {})
