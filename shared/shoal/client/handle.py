"""The handle of a submitted job."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.errors import Timeout
from shoal.replies import Reply

if TYPE_CHECKING:
    from shoal.client.client import Client


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
        reply = self.client.connect().wait_result(self.id, timeout_s)
        if reply is None:
            raise Timeout(f"job {self.id} has no answer after {timeout_s:g} s: it keeps its place, ask again")
        return Reply.join([reply])

    def status(self) -> str:
        """Return one of queued, running, done, failed, cancelled and expired."""
        return self.client.queue.status(self.id)[0]

    def cancel(self) -> str:
        """Cancel the job unless it is answered; return its status after that."""
        return self.client.queue.cancel(self.id)
