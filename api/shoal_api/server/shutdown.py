"""Shutdown without losing a request: connections end with their next response, and then the server stops.

Granian itself would close each connection that has no unanswered request, although a request may be on its way. A
second signal, or a new connection at the same instant, could make Granian wait for ever.
"""

import fcntl
import os
import re
import signal
import socket
import stat
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Time without data after which a connection is idle, in seconds.
IDLE_S = 1.0

#: Longest time for which a stopping process keeps connections that are not idle, in seconds.
DRAIN_S = 5.0

#: Seconds between two checks of the connections.
SETTLE_S = 0.05

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Socket option: accept packets only from the interface with the given index. No interface has `_NO_INTERFACE`.
_SO_BINDTOIFINDEX = 62
_NO_INTERFACE = 2**31 - 1

#: Folder with an entry for each file that the process has open.
OPEN_FILES = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"

#: True if the system reports when data last came and went on a connection.
HAS_TCP_INFO = sys.platform == "linux"

#: The fields of Linux's `struct tcp_info` that `_TcpInfo` has.
_TCP_INFO = struct.Struct("=24xI16xI4xI72xQ")

#: The system's tables of TCP connections, one for IPv4 and one for IPv6.
_CONNECTION_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))

#: A line of these tables for a connection that is not yet established. The group is the local port.
_HANDSHAKE = re.compile(r"^ *\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 03 ", re.MULTILINE)


def on_stop_signal(callback: Callable[[], object]) -> None:
    """Call `callback` in a new thread at the first SIGTERM or SIGINT. Call this before other threads start."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def wait() -> None:
        signal.sigwait(_SIGNALS)
        callback()

    threading.Thread(target=wait, daemon=True).start()


def drain(port: int) -> None:
    """Refuse new connections to `port`, and return once all clients are idle, but after at most `DRAIN_S`."""
    if sys.platform == "linux":
        for listener in listeners_on(port):
            # The first process needs no privilege for this. The option then holds for all processes with this listener.
            with suppress(OSError):
                listener.setsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX, _NO_INTERFACE)
    until_s = time.monotonic() + DRAIN_S
    while time.monotonic() < until_s and _is_in_use(port):
        time.sleep(SETTLE_S)


def _is_in_use(port: int) -> bool:
    """Return True if a client is connecting, waits to be accepted, or is not idle. The checks need this order."""
    tables = [table.read_text() for table in _CONNECTION_TABLES if table.exists()]
    if any(int(local_port, 16) == port for table in tables for local_port in _HANDSHAKE.findall(table)):
        return True  # a TCP handshake is still under way
    if HAS_TCP_INFO and any(_tcp_info(listener).num_unacknowledged for listener in listeners_on(port)):
        return True  # connections that the process has not accepted yet
    return not all(map(_is_idle, connections_on(port)))


def _is_idle(connection: socket.socket) -> bool:
    """Return True if data has come and been read, and none has come or gone in the last `IDLE_S`."""
    if not HAS_TCP_INFO:
        return False
    num_unread_bytes = struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, b"\0" * 4))[0]
    info = _tcp_info(connection)
    is_quiet = info.num_received_bytes > 0 and min(info.sent_ms_ago, info.received_ms_ago) > IDLE_S * 1_000
    return is_quiet and num_unread_bytes == 0


class _TcpInfo(NamedTuple):
    """The kernel's record of a connection or a listening socket. Until data comes, times count from its creation."""

    #: The number of segments on their way. For a listening socket, the number of connections not yet accepted.
    num_unacknowledged: int

    #: Milliseconds since data was last sent, and since data was last received.
    sent_ms_ago: int
    received_ms_ago: int

    num_received_bytes: int


def _tcp_info(sock: socket.socket) -> _TcpInfo:
    """Return the kernel's record of a socket. Works only if `HAS_TCP_INFO` is True."""
    return _TcpInfo._make(_TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)))


def connections_on(port: int) -> Iterator[socket.socket]:
    """Yield the connections on the port that lead to a client. Each is closed when the next one is asked for."""
    for sock in _sockets_on(port):
        with suppress(OSError):
            sock.getpeername()
            yield sock


def listeners_on(port: int) -> Iterator[socket.socket]:
    """Yield the sockets that accept connections on the port. Each is closed when the next one is asked for."""
    return (sock for sock in _sockets_on(port) if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _sockets_on(port: int) -> Iterator[socket.socket]:
    """Yield a duplicate of each socket of the process that is bound to the port."""
    for descriptor in os.listdir(OPEN_FILES):
        try:
            if not stat.S_ISSOCK(os.stat(f"{OPEN_FILES}/{descriptor}").st_mode):
                continue
            sock = socket.socket(fileno=os.dup(int(descriptor)))
        except OSError:  # the descriptor is closed by now
            continue
        with sock:
            is_on = False
            with suppress(OSError):
                is_on = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.getsockname()[1] == port
            if is_on:
                yield sock
