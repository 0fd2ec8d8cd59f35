"""Jobs on their way, by what they ask: who asks what somebody else is waiting for waits for the same reply."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from shoal.jobs import Job
from shoal.queue.dispatcher import Dispatcher, PendingReply

#: How much earlier than a job the one before it may expire for its reply to do.
SLACK_S = 1.0


@dataclass(slots=True, eq=False)
class Flight:
    """A job on its way, and how many wait for its reply."""

    question: tuple[Any, ...]
    job: Job
    pending: PendingReply
    num_waiting: int = 0

    def suits(self, job: Job) -> bool:
        """Whether its reply will do for `job`, which asks the same."""
        return not self.pending.done() and (self.job.deadline or 0) >= (job.deadline or 0) - SLACK_S


class Flights:
    """The flights of one client. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_question: dict[tuple[Any, ...], Flight] = {}

    def board(self, exchange: Dispatcher, lane: str, jobs: Sequence[Job], client: str = "") -> list[Flight]:
        """A flight for each of the jobs: one under way that asks the same, or a new one, which is sent."""
        flights, new = [], []
        with self._lock:
            for job in jobs:
                question = (lane, job.op, job.options, job.k, job.index, *job.texts)
                flight = self._by_question.get(question)
                if flight is None or not flight.suits(job):
                    new.append(job)
                    flight = self._by_question[question] = Flight(question, job, exchange.expect([job])[0])
                flight.num_waiting += 1
                flights.append(flight)
        if new:
            exchange.send(lane, new, client)
        return flights

    def leave(self, exchange: Dispatcher, flights: Sequence[Flight]) -> None:
        """Ends a caller's interest; a reply that nobody waits for any more is forgotten."""
        with self._lock:
            for flight in flights:
                flight.num_waiting -= 1
                if not flight.num_waiting and self._by_question.get(flight.question) is flight:
                    del self._by_question[flight.question]
        exchange.forget([flight.job for flight in flights if not flight.num_waiting])
