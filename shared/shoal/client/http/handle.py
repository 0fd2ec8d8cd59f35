"""The handle of a job that was submitted over HTTP."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from shoal.client.http.messages import reply_of
from shoal.contract.excerpt import excerpt
from shoal.contract.keys import NAME
from shoal.contract.replies import Reply
from shoal.errors import Timeout, UnknownJob

if TYPE_CHECKING:
    from shoal.client.http.answer import Answer
    from shoal.client.http.client import HttpClient

#: Longest time that one request waits for the result of a job: many proxies end a request that takes a minute.
MAX_WAIT_S = 20.0

#: Seconds for an answer to arrive, beside the time that its request waits for the result of a job.
ROUND_TRIP_S = 5.0


@dataclass(frozen=True, slots=True)
class HttpHandle:
    """A submitted job."""

    client: "HttpClient"
    id: str

    @classmethod
    def of(cls, client: "HttpClient", answer: "Answer") -> Self:
        """Return the handle of the job that an answer to a submit names."""
        return cls(client, answer.text("id"))

    def result(self, timeout_s: float | None = None) -> Reply:
        """Return the job's reply, waiting for it.

        Raises the reply's error, Timeout, or UnknownJob once the result has expired.
        """
        timeout_s = self.client.timeout_s if timeout_s is None else timeout_s
        until = time.monotonic() + timeout_s
        while True:
            wait_s = max(0.0, min(MAX_WAIT_S, until - time.monotonic()))
            path = f"{job_path(self.id)}/result?wait={wait_s:.3f}"
            try:
                answer = self.client.ask("GET", path, time.monotonic() + wait_s + ROUND_TRIP_S)
            except Timeout:
                answer = None
            if answer is not None and answer.status != 202:
                return reply_of(self.id, answer.values())
            if time.monotonic() >= until:
                raise Timeout(f"job {self.id} has no answer after {timeout_s:g} s: it keeps its place, ask again")

    def status(self) -> str:
        """Return one of queued, running, done, failed, cancelled and expired."""
        return self.client.ask("GET", job_path(self.id)).text("status")

    def cancel(self) -> str:
        """Cancel the job unless it is answered; return its status after that."""
        return self.client.ask("DELETE", job_path(self.id)).text("status")


def job_path(job_id: str) -> str:
    """Return the path of a job; raise UnknownJob for an id that no job has."""
    if not NAME.fullmatch(job_id) or not job_id.strip("."):
        raise UnknownJob(f"no job {excerpt(job_id)}: ids of jobs have letters and digits")
    return f"/v1/jobs/{job_id}"
