"""Connections that stall: a body that trickles in, or an answer that is not taken.

The server below has a limit of time for headers only. A thread that reads a body waits in it until the body is there or
the connection is gone, and nothing tells which connection that is: so the kernel is asked which of them have had no
answer for longer than any request takes that is not too slow.
"""

import fcntl
import logging
import socket
import struct
import termios
import threading
import time
from collections.abc import Set
from contextlib import suppress

from shoal_api.request import JsonRequest
from shoal_api.server.sockets import listens, sockets_on

#: Where `struct tcp_info` of Linux says how many milliseconds ago data was last sent, or when the connection was made.
_LAST_DATA_SENT = struct.Struct("=44xI")

#: So that a time measured here and one measured by the kernel may differ a little.
_SLACK_S = 0.5

_log = logging.getLogger(__name__)


class SlowClients:
    """Cuts off the connections to a port of this process that stall for `patience_s`."""

    def __init__(self, port: int, running: Set[JsonRequest], patience_s: float):
        self._port = port
        self._running = running
        self._patience_s = patience_s

    def start(self) -> None:
        """Watches for as long as the process lives."""
        threading.Thread(target=self._run, daemon=True).start()

    def cut(self) -> int:
        """Cuts off what has stalled by now; returns how many connections."""
        idle_s, num_cut = self._longest_idle_s(), 0
        for connection in sockets_on(self._port):
            if listens(connection):
                continue
            silent_s = _silent_s(connection)
            has_not_taken = silent_s > self._patience_s and _num_unsent(connection)
            if has_not_taken or (idle_s and silent_s > idle_s):
                with suppress(OSError):  # the other side has closed it by now
                    connection.shutdown(socket.SHUT_RDWR)
                    num_cut += 1
        return num_cut

    def _run(self) -> None:
        while True:
            time.sleep(self._patience_s / 4)
            try:
                if num_cut := self.cut():
                    _log.warning("cut off %d connections that stalled for %g s", num_cut, self._patience_s)
            except OSError as error:
                _log.error("connections that stall cannot be found: %s", error)

    def _longest_idle_s(self) -> float | None:
        """How long a connection can have had no answer whose body is not overdue; None if none is overdue.

        Headers have had their time before a request is known here, and it may wait for its answer for longer.
        """
        now_s = time.perf_counter()
        ages_s = [(now_s - request.started_s, request.is_arriving) for request in list(self._running)]
        if not any(is_arriving and age_s > self._patience_s for age_s, is_arriving in ages_s):
            return None
        waited_s = max((age_s for age_s, is_arriving in ages_s if not is_arriving), default=0.0)
        return self._patience_s + max(self._patience_s, waited_s) + _SLACK_S


def _silent_s(connection: socket.socket) -> float:
    """How long ago something was sent to the other side."""
    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_SENT.size)
    return float(_LAST_DATA_SENT.unpack(state)[0]) / 1_000


def _num_unsent(connection: socket.socket) -> int:
    """How many bytes the other side has not taken yet."""
    return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0" * 4))[0])
