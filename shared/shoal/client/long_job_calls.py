"""The calls of clients for long jobs, as coroutines, whichever way they reach them."""

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from shoal.errors import Timeout, Unavailable
from shoal.long_jobs.status import LongJobStatus

#: Is called with each state of a job that is seen.
OnStatus = Callable[[LongJobStatus], object]

#: Seconds between two looks at a job that is waited for: the first of them, and the most.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 0.5

#: Seconds for which a wait goes on while Redis or the API does not answer.
MAX_AWAY_S = 60.0


class LongJobCalls(Protocol):
    """The calls for long jobs, through Redis or over HTTP."""

    async def status(self, job_id: str) -> LongJobStatus:
        """Return the state of a job; raise UnknownJob if there is none."""

    async def wait(self, job_id: str, timeout_s: float | None, on_status: OnStatus | None) -> dict[str, Any]:
        """Return the result of a job once it is done, as `wait_for` does."""

    async def pause(self, job_id: str) -> str:
        """Stop a job for a while; return its status."""

    async def resume(self, job_id: str) -> str:
        """Let a paused job go on; return its status."""

    async def cancel(self, job_id: str) -> str:
        """End a job for good; return its status."""

    async def delete(self, job_id: str) -> None:
        """Forget a job that has ended; raise JobNotEnded for one that has not."""


async def wait_for(
    job_id: str,
    look: Callable[[str], Awaitable[LongJobStatus]],
    sleep: Callable[[float], Awaitable[None]],
    timeout_s: float | None,
    on_status: OnStatus | None,
) -> dict[str, Any]:
    """Return the result of a job once it is done; without `timeout_s`, wait for any time. `look` returns its state.

    Raises the error of a job that failed, Cancelled, Timeout, and Unavailable if there is no state at first, or for
    `MAX_AWAY_S`.
    """
    until_s = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
    answered_s, pause_s = -math.inf, FIRST_PAUSE_S
    while True:
        try:
            status = await look(job_id)
        except Unavailable:
            if time.monotonic() - answered_s > MAX_AWAY_S:
                raise
        else:
            answered_s = time.monotonic()
            if on_status:
                on_status(status)
            if error := status.failure():
                raise error
            if status.has_ended:
                return dict(status.result or {})
        if (left_s := until_s - time.monotonic()) <= 0:
            raise Timeout(f"job {job_id} is not done after {timeout_s:g} s: it goes on, wait again")
        await sleep(min(pause_s, left_s))
        pause_s = min(MAX_PAUSE_S, 2 * pause_s)
