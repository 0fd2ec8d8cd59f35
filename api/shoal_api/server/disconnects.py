"""Whether whoever sent a request is still there.

WSGI does not tell, and the server below does not say on which connection a request came. But it closes the connection
when its caller does, and the system knows when each connection last brought something. While a request waits, nothing
more comes on its own; so once there is no connection left that fell silent when the request came, its caller has gone.
"""

import socket
import struct
import time
from threading import Lock

from shoal_api.server.sockets import listens, sockets_on

#: By how much later than its last byte a request may begin while there are threads for all.
SLACK_S = 1.0

#: How long after most threads were busy a request may still begin that has waited for one, nobody knows how long.
BUSY_FOR_S = 60.0

#: How long what the system said is good for, so that those who wait at the same time ask it once.
_GOOD_FOR_S = 0.5

#: By how much a time measured here and one measured by the system may differ.
_ROUNDING_S = 0.05

#: In `struct tcp_info` of Linux: the state, how many milliseconds ago data was last sent and last came, and how many
#: bytes came.
_TCP_INFO = struct.Struct("=B43xI4xI72xQ")

_ESTABLISHED = 1


class Disconnects:
    """When connections to a port of this process last brought something that is not answered. Thread-safe.

    `num_threads` is how many requests the process can work on at a time.
    """

    def __init__(self, port: int, num_threads: int):
        self._port = port
        self._busy_from = num_threads // 2
        self._busy_until = 0.0
        self._lock = Lock()
        self._looked_at = 0.0
        self._times: list[float] = []

    def since(self, started_s: float, num_running: int) -> float:
        """The earliest that the last byte of a request came which began then, beside so many others."""
        if num_running >= self._busy_from:
            self._busy_until = started_s + BUSY_FOR_S
        return 0.0 if started_s < self._busy_until else started_s - SLACK_S

    def has_any(self, since: float, until: float) -> bool:
        """Whether an open connection last brought something between these times of `time.perf_counter`."""
        with self._lock:
            if time.perf_counter() - self._looked_at > _GOOD_FOR_S:
                found = (_last_data_at(sock) for sock in sockets_on(self._port) if not listens(sock))
                self._times = [at for at in found if at is not None]
                self._looked_at = time.perf_counter()
            return any(since <= at <= until + _ROUNDING_S for at in self._times)


def _last_data_at(connection: socket.socket) -> float | None:
    """When it last brought something that was not answered; None if nothing, or if the other side has closed it."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    state, sent_ms_ago, came_ms_ago, num_bytes = _TCP_INFO.unpack(info)
    is_open = state == _ESTABLISHED and num_bytes
    return time.perf_counter() - came_ms_ago / 1_000 if is_open and sent_ms_ago >= came_ms_ago else None
