"""Disconnects: the detection of clients that have gone while their request waits.

WSGI does not tell, and Granian does not say which connection a request came by. But Granian closes a connection when
its client does, and the kernel knows when each connection last received data. While a request waits, its connection
receives nothing more. So when fewer connections wait for an answer than requests run, and none of them has last
received data at the time at which the request arrived, its client has gone.
"""

import socket
import time
from collections.abc import Callable
from threading import Lock

from shoal_api.server.sockets import HAS_TCP_INFO, connections_on, tcp_info

#: Longest time from the last byte of a request until a thread starts it, while threads are free.
SLACK_S = 1.0

#: For this time after more than half of the threads were busy, a request that starts may have waited for a thread, for
#: an unknown time.
BUSY_FOR_S = 60.0

#: Time for which an answer of the kernel is used again, so that requests that wait at the same time ask it once.
_MAX_AGE_S = 0.5

#: Allowance for the difference between a time measured here and one measured by the kernel.
_ROUNDING_S = 0.05

_ESTABLISHED = 1


class Disconnects:
    """The times at which connections to a port of this process last received data. Thread-safe.

    `num_threads` is how many requests the process can work on at a time. Times are of `time.perf_counter`.
    """

    def __init__(self, port: int, num_threads: int):
        self._port = port
        self._busy_from = num_threads // 2
        self._busy_until_s = 0.0
        self._lock = Lock()
        self._read_at_s = 0.0
        self._received_at_s: list[float] = []

    def earliest_arrival_s(self, started_s: float, num_unanswered: int) -> float:
        """Return the earliest time at which the last byte of a request can have arrived that started at `started_s`.

        `num_unanswered` is the number of requests that run or wait beside it.
        """
        if num_unanswered >= self._busy_from:
            self._busy_until_s = started_s + BUSY_FOR_S
        return 0.0 if started_s < self._busy_until_s else started_s - SLACK_S

    def has_connection(self, earliest_s: float, latest_s: float, num_unanswered: Callable[[], int]) -> bool:
        """Return true if an open connection last received data between these times, or if the system does not tell.

        Return true, too, if as many connections wait for an answer as there are unanswered requests, for then no client
        has gone: a request may have arrived before the earliest time while this process was stopped or starved.
        """
        if not HAS_TCP_INFO:
            return True
        with self._lock:
            if self._read_at_s <= max(
                latest_s, time.perf_counter() - _MAX_AGE_S
            ):  # a younger request has no trace in it
                times_s = map(_received_at_s, connections_on(self._port))
                self._read_at_s = time.perf_counter()
                self._received_at_s = [time_s for time_s in times_s if time_s is not None]
            if len(self._received_at_s) >= num_unanswered():
                return True
            return any(earliest_s <= time_s <= latest_s + _ROUNDING_S for time_s in self._received_at_s)


def _received_at_s(connection: socket.socket) -> float | None:
    """Return when data last came that was not answered; None if none did, or if the client has disconnected."""
    info = tcp_info(connection)
    is_waiting = info.state == _ESTABLISHED and info.num_received_bytes and info.sent_ms_ago >= info.received_ms_ago
    return time.perf_counter() - info.received_ms_ago / 1_000 if is_waiting else None
