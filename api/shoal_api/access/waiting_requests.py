"""Requests that wait, without a thread, until their client may hold one more."""

import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from shoal.errors import Overloaded
from shoal_api.access.thread_quota import ThreadQuotas

#: Most requests of one client that wait. Each holds a connection and some kilobytes of its process.
MAX_WAITING = 2_048

R = TypeVar("R")


@dataclass(slots=True)
class ThreadDemand:
    """The number of its client's threads that a request counts for, and what became of the request so far.

    `arrived_s` is the time, by `time.perf_counter`, at which the server had its headers, and `waited_s` how long it
    waited for its thread. `is_held` is true if the server counts the threads until the response is sent, or nothing
    does; otherwise access control counts them. A request with a `refusal` is not counted, and answered with that error.
    """

    client: str
    num_threads: int
    arrived_s: float
    is_held: bool = False
    waited_s: float = 0.0
    refusal: Overloaded | None = None


class WaitingRequests(Generic[R]):
    """The requests of each client that wait, in order. Thread-safe.

    A request that ends gives its threads to requests that wait: the clients take turns, each as far as its limit goes.
    """

    def __init__(self, quotas: ThreadQuotas):
        self._quotas = quotas
        self._waiting: OrderedDict[str, deque[tuple[ThreadDemand, R]]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    def try_enter(self, demand: ThreadDemand) -> bool:
        """Count the threads of a request and return True, unless it has to wait, as earlier ones of its client do."""
        with self._lock:
            return self._try_enter(demand)

    def enter(self, demand: ThreadDemand, request: R) -> bool:
        """Count the threads of a request and return True, or let it wait and return False.

        Raises Overloaded if too many requests of the client wait.
        """
        with self._lock:
            if self._try_enter(demand):
                return True
            earlier = self._waiting.get(demand.client)
            if earlier and len(earlier) >= MAX_WAITING:
                raise Overloaded(f"{MAX_WAITING:,} requests of this client wait for a thread: send fewer at a time")
            self._waiting.setdefault(demand.client, deque()).append((demand, request))
            return False

    def leave(self, demand: ThreadDemand) -> list[tuple[ThreadDemand, R]]:
        """Count the threads of a request that has ended no longer; return the requests that may run now."""
        self._quotas.release(demand.client, demand.num_threads)
        found = []
        with self._lock:
            while (following := self._next()) is not None:
                found.append(following)
        return found

    def _try_enter(self, demand: ThreadDemand) -> bool:
        return demand.client not in self._waiting and self._quotas.try_acquire(demand.client, demand.num_threads)

    def _next(self) -> tuple[ThreadDemand, R] | None:
        """Take the first request of a client that may hold its threads, and let the other clients have the next."""
        for client, requests in self._waiting.items():
            if self._quotas.try_acquire(client, requests[0][0].num_threads):
                following = requests.popleft()
                following[0].waited_s = time.perf_counter() - following[0].arrived_s
                self._waiting.move_to_end(client)
                if not requests:
                    del self._waiting[client]
                return following
        return None
