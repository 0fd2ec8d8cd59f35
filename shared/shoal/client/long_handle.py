"""The handle of a long job, whichever way a client reaches it: for programs without an event loop, and for one."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.client.long_job_calls import LongJobCalls, LongWait, OnStatus
from shoal.client.work_threads import WorkThreads
from shoal.errors import Unavailable
from shoal.long_jobs.status import Progress


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

    def wait(self, timeout_s: float | None = None, on_status: OnStatus | None = None) -> dict[str, Any]:
        """Return the job's result once it is done; without `timeout_s`, wait for any time.

        `on_status` is called with each state that is seen, about twice a second. While Redis or the API does not
        answer, it is asked again for up to a minute. Raises the error of a job that failed, Cancelled, and Timeout.
        """
        wait = LongWait(self.id, timeout_s, on_status)
        while True:
            try:
                status = self.jobs.status(self.id)
            except Unavailable as error:
                wait.missed(error)
            else:
                if wait.saw(status):
                    return dict(status.result or {})
            time.sleep(wait.pause_s())

    def pause(self) -> str:
        """Stop the job for a while, without losing what is done; return its status."""
        return self.jobs.pause(self.id)

    def resume(self) -> str:
        """Let the job go on if it is paused; return its status."""
        return self.jobs.resume(self.id)

    def cancel(self) -> str:
        """End the job for good; return its status. The files that it has written stay."""
        return self.jobs.cancel(self.id)

    def delete(self) -> None:
        """Forget the job, which has ended; raises JobNotEnded if it has not.

        The files of a job that was submitted over HTTP go with it; a folder that the submitter named stays.
        """
        self.jobs.delete(self.id)


@dataclass(frozen=True, slots=True)
class AsyncLongHandle:
    """A long job that was submitted, for the event loop that uses its client. `LongHandle` says what its methods do.

    `threads` returns the threads of the client that ask RQ, which knows no event loop.
    """

    jobs: LongJobCalls
    threads: Callable[[], WorkThreads]
    id: str

    async def status(self) -> str:
        """Return one of queued, running, paused, done, failed and cancelled."""
        return (await self.threads().do(self.jobs.status, self.id)).status

    async def progress(self) -> Progress:
        """Return the progress of the job."""
        return (await self.threads().do(self.jobs.status, self.id)).progress

    async def wait(self, timeout_s: float | None = None, on_status: OnStatus | None = None) -> dict[str, Any]:
        """Return the job's result once it is done; to cancel a task that waits leaves the job as it is."""
        wait, threads = LongWait(self.id, timeout_s, on_status), self.threads()
        while True:
            try:
                status = await threads.do(self.jobs.status, self.id)
            except Unavailable as error:
                wait.missed(error)
            else:
                if wait.saw(status):
                    return dict(status.result or {})
            await threads.sleep(wait.pause_s())

    async def pause(self) -> str:
        """Stop the job for a while; return its status."""
        return await self.threads().do(self.jobs.pause, self.id)

    async def resume(self) -> str:
        """Let the job go on if it is paused; return its status."""
        return await self.threads().do(self.jobs.resume, self.id)

    async def cancel(self) -> str:
        """End the job for good; return its status."""
        return await self.threads().do(self.jobs.cancel, self.id)

    async def delete(self) -> None:
        """Forget the job, which has ended."""
        await self.threads().do(self.jobs.delete, self.id)
