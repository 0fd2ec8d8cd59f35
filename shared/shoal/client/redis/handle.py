"""The handle of a submitted job."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.errors import Timeout
from shoal.replies import Reply

if TYPE_CHECKING:
    from shoal.client.redis.async_client import AsyncClient
    from shoal.client.redis.client import Client


@dataclass(frozen=True, slots=True)
class Handle:
    """A submitted job."""

    client: "Client"
    id: str

    def result(self, timeout_s: float | None = None) -> Reply:
        """Return the job's reply, waiting for it.

        Raises the reply's error, Timeout, or UnknownJob once the result has expired.
        """
        timeout_s = self.client.timeout_s if timeout_s is None else timeout_s
        return _checked(self.id, self.client.connect().wait_result(self.id, timeout_s), timeout_s)

    def status(self) -> str:
        """Return one of queued, running, done, failed, cancelled and expired."""
        return self.client.queue.status(self.id)[0]

    def cancel(self) -> str:
        """Cancel the job unless it is answered; return its status after that."""
        return self.client.queue.cancel(self.id)


@dataclass(frozen=True, slots=True)
class AsyncHandle:
    """A submitted job, for the event loop that uses its client."""

    client: "AsyncClient"
    id: str

    async def result(self, timeout_s: float | None = None) -> Reply:
        """Return the job's reply, waiting for it; to cancel the task that waits does not cancel the job.

        Raises the reply's error, Timeout, or UnknownJob once the result has expired.
        """
        timeout_s = self.client.timeout_s if timeout_s is None else timeout_s
        return _checked(self.id, await self.client.connect().wait_result(self.id, timeout_s), timeout_s)

    async def status(self) -> str:
        """Return one of queued, running, done, failed, cancelled and expired."""
        return (await self.client.queue.status(self.id))[0]

    async def cancel(self) -> str:
        """Cancel the job unless it is answered; return its status after that."""
        return await self.client.queue.cancel(self.id)


def _checked(job_id: str, reply: Reply | None, timeout_s: float) -> Reply:
    if reply is None:
        raise Timeout(f"job {job_id} has no answer after {timeout_s:g} s: it keeps its place, ask again")
    return Reply.join([reply])
