"""Slow clients: connections whose request body trickles in, or whose response is not read.

Granian limits the time of headers only. A thread that reads a body waits in it until the body is complete or the
connection ends, and Granian does not tell which connection that is. So the kernel is asked which connections were idle
longer than any legitimate request can be.
"""

import fcntl
import logging
import math
import socket
import struct
import termios
import threading
import time
from collections.abc import Set
from contextlib import suppress

from shoal_api.access.body_reads import BodyRead
from shoal_api.request import JsonRequest
from shoal_api.server.sockets import HAS_TCP_INFO, connections_on, tcp_info

#: Allowance for the difference between a time measured here and one measured by the kernel.
_SLACK_S = 0.5

_log = logging.getLogger(__name__)


class SlowClients:
    """A watch over the connections to a port of this process, which ends those that stall for `timeout_s`.

    `running` has the requests that are being answered, and changes while this runs.
    """

    def __init__(self, port: int, running: Set[JsonRequest | BodyRead], timeout_s: float):
        self._port = port
        self._running = running
        self._timeout_s = timeout_s

    def start(self) -> None:
        """Watch in a thread for as long as the process lives, where the system tells what is needed for it."""
        if HAS_TCP_INFO:
            threading.Thread(target=self._run, daemon=True).start()

    def disconnect(self) -> int:
        """End the connections that have stalled by now; return how many."""
        max_idle_s, least_uploaded, num_ended = self._max_idle_s(), self._least_uploaded(), 0
        for connection in connections_on(self._port):
            info = tcp_info(connection)
            idle_s = info.sent_ms_ago / 1_000
            is_not_reading = idle_s > self._timeout_s and _num_unsent_bytes(connection) > 0
            is_uploading = info.num_received_bytes >= least_uploaded and info.received_ms_ago < self._timeout_s * 1_000
            if is_not_reading or (max_idle_s is not None and idle_s > max_idle_s and not is_uploading):
                with suppress(OSError):  # the client has closed it by now
                    connection.shutdown(socket.SHUT_RDWR)
                    num_ended += 1
        return num_ended

    def _run(self) -> None:
        while True:
            time.sleep(self._timeout_s / 4)
            try:
                if num_ended := self.disconnect():
                    _log.warning("cut off %d connections that stalled for %g s", num_ended, self._timeout_s)
            except OSError as error:
                _log.error("connections that stall cannot be found: %s", error)

    def _max_idle_s(self) -> float | None:
        """Return the longest time without a response that a legitimate request can have; None if no body is overdue.

        A request has `timeout_s` for its headers, before it is known here, and then `timeout_s` for its body. If a
        request with a complete body waits longer than that for its reply, so may others. An upload has that time for
        each piece.
        """
        now_s = time.perf_counter()
        ages_s = [
            (now_s - (request.progressed_s if request.is_receiving else request.started_s), request.is_receiving)
            for request in list(self._running)
        ]
        if not any(is_receiving and age_s > self._timeout_s for age_s, is_receiving in ages_s):
            return None
        longest_wait_s = max((age_s for age_s, is_receiving in ages_s if not is_receiving), default=0.0)
        return self._timeout_s + max(self._timeout_s, longest_wait_s) + _SLACK_S

    def _least_uploaded(self) -> float:
        """Return the fewest bytes that any upload under way has received; infinity if no upload is under way.

        A connection that received fewer bytes does not belong to one of these uploads.
        """
        earliest_s = time.perf_counter() - self._timeout_s
        uploads = (request for request in list(self._running) if request.progressed_s > request.started_s)
        sizes = [upload.num_uploaded_bytes for upload in uploads if upload.progressed_s > earliest_s]
        return min(sizes, default=math.inf)


def _num_unsent_bytes(connection: socket.socket) -> int:
    """Return how many bytes the client has not taken yet."""
    return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0" * 4))[0])
