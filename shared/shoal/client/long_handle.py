"""The handle of a long job, whichever way a client reaches it: for an event loop, and for programs without one."""

from dataclasses import dataclass
from typing import Any

from shoal.blocking import blocking
from shoal.client.long_job_calls import LongJobCalls, OnStatus
from shoal.long_jobs.status import Progress


@dataclass(frozen=True, slots=True)
class AsyncLongHandle:
    """A long job that was submitted, for the event loop that uses its client."""

    jobs: LongJobCalls
    id: str

    async def status(self) -> str:
        """Return one of queued, running, paused, done, failed and cancelled."""
        return (await self.jobs.status(self.id)).status

    async def progress(self) -> Progress:
        """Return the progress: rows, bad rows with the first messages, fraction, rows a second and seconds left."""
        return (await self.jobs.status(self.id)).progress

    async def wait(self, timeout_s: float | None = None, on_status: OnStatus | None = None) -> dict[str, Any]:
        """Return the job's result once it is done; without `timeout_s`, wait for any time.

        `on_status` is called with each state that is seen, about twice a second. While Redis or the API does not
        answer, it is asked again for up to a minute. To cancel a task that waits leaves the job as it is. Raises the
        error of a job that failed, Cancelled, and Timeout.
        """
        return await self.jobs.wait(self.id, timeout_s, on_status)

    async def pause(self) -> str:
        """Stop the job for a while, without losing what is done; return its status."""
        return await self.jobs.pause(self.id)

    async def resume(self) -> str:
        """Let the job go on if it is paused; return its status."""
        return await self.jobs.resume(self.id)

    async def cancel(self) -> str:
        """End the job for good; return its status. The files that it has written stay."""
        return await self.jobs.cancel(self.id)

    async def delete(self) -> None:
        """Forget the job, which has ended; raises JobNotEnded if it has not.

        The files of a job that was submitted over HTTP go with it; a folder that the submitter named stays.
        """
        await self.jobs.delete(self.id)


@dataclass(frozen=True, slots=True)
class LongHandle:
    """A long job that was submitted. Thread-safe."""

    jobs: LongJobCalls
    id: str

    @property
    def asynchronous(self) -> AsyncLongHandle:
        """The same handle for calls whose I/O blocks the thread."""
        return AsyncLongHandle(self.jobs, self.id)

    status = blocking(AsyncLongHandle.status)
    progress = blocking(AsyncLongHandle.progress)
    wait = blocking(AsyncLongHandle.wait)
    pause = blocking(AsyncLongHandle.pause)
    resume = blocking(AsyncLongHandle.resume)
    cancel = blocking(AsyncLongHandle.cancel)
    delete = blocking(AsyncLongHandle.delete)
