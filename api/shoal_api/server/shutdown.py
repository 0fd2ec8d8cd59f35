"""Shutdown without losing a request: connections end with their next response, and then the server stops.

Granian by itself closes connections on which nothing is being answered, though a request may be on its way. A second
signal, or a connection that comes at the same instant, can make it wait for ever.
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

#: Time without data after which a connection counts as idle.
IDLE_S = 1.0

#: Longest time that a process keeps connections that are not idle once it was told to stop.
DRAIN_S = 5.0

#: Interval at which connections are looked at.
SETTLE_S = 0.05

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Socket option: only packets from the network interface of this index are accepted. No interface has `_NO_INTERFACE`.
_SO_BINDTOIFINDEX = 62
_NO_INTERFACE = 2**31 - 1

#: Folder with an entry for each file that the process has open.
OPEN_FILES = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"

#: Whether the system tells when data last came and went on a connection.
HAS_TCP_INFO = sys.platform == "linux"

#: The fields of `struct tcp_info` of Linux that `_TcpInfo` has.
_TCP_INFO = struct.Struct("=24xI16xI4xI72xQ")


#: The system's tables of TCP connections, of IPv4 and IPv6.
_CONNECTION_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))

#: A connection in these tables that a client has begun and not yet established, with its local port.
_HANDSHAKE = re.compile(r"^ *\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 03 ", re.MULTILINE)


def on_stop_signal(callback: Callable[[], object]) -> None:
    """Call `callback` in a thread of its own at the first SIGTERM or SIGINT to this process; ignore later ones.

    Call this before other threads start: these, and forked processes, then block the signals too.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def wait() -> None:
        signal.sigwait(_SIGNALS)
        callback()

    threading.Thread(target=wait, daemon=True).start()


def drain(port: int) -> None:
    """Return once all clients that are connected to `port` of this process are idle, but after at most `DRAIN_S`.

    No new connection can begin meanwhile, so none is cut off when the server stops listening.
    """
    for listener in listeners_on(port):
        _refuse_new_connections(listener)
    until_s = time.monotonic() + DRAIN_S
    while time.monotonic() < until_s and _is_in_use(port):
        time.sleep(SETTLE_S)


def _is_in_use(port: int) -> bool:
    """Return true if a client is connected or about to be, but for idle ones.

    The order is the order of a connection's life, so one that moves on meanwhile is seen at its next stage.
    """
    if _has_handshakes(port):
        return True
    if HAS_TCP_INFO and any(_tcp_info(listener).num_unacknowledged for listener in listeners_on(port)):
        return True  # clients whose connections the process has not accepted yet
    return not all(map(_is_idle, connections_on(port)))


def _is_idle(connection: socket.socket) -> bool:
    """Return true if no data came or went for `IDLE_S` and none waits to be read; false if the system does not tell.

    A connection on which nothing has come yet is not idle: its first request is on its way.
    """
    if not HAS_TCP_INFO:
        return False
    num_unread_bytes = struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, b"\0" * 4))[0]
    info = _tcp_info(connection)
    is_quiet = info.num_received_bytes > 0 and min(info.sent_ms_ago, info.received_ms_ago) > IDLE_S * 1_000
    return is_quiet and num_unread_bytes == 0


def _refuse_new_connections(listener: socket.socket) -> None:
    """Let the system refuse new connections, while those that have begun are established and can still be accepted.

    It needs no privilege, but only once: the next process that shares the listener may be told that it may not.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX, _NO_INTERFACE)


class _TcpInfo(NamedTuple):
    """The kernel's record of a connection, or of a listening socket. Times begin with the connection."""

    #: The number of segments on their way; of a listening socket, the number of connections not yet accepted.
    num_unacknowledged: int

    #: Milliseconds since data was last sent, and received.
    sent_ms_ago: int
    received_ms_ago: int

    num_received_bytes: int


def _tcp_info(sock: socket.socket) -> _TcpInfo:
    """Return the kernel's record of a socket, where the system `HAS_TCP_INFO`."""
    return _TcpInfo._make(_TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)))


def connections_on(port: int) -> Iterator[socket.socket]:
    """Yield the connections on the port, each open until the next one is asked for.

    A socket that is bound to the port and connected to no client, such as Granian's own, is none.
    """
    for sock in _sockets_on(port):
        with suppress(OSError):
            sock.getpeername()
            yield sock


def listeners_on(port: int) -> Iterator[socket.socket]:
    """Yield the sockets that take connections on the port, each open until the next one is asked for."""
    return (sock for sock in _sockets_on(port) if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _has_handshakes(port: int) -> bool:
    """Return true if a client has begun to connect to the port of this machine and is not connected yet.

    No socket of the process shows such a client. False where the system does not tell.
    """
    tables = [table.read_text() for table in _CONNECTION_TABLES if table.exists()]
    return any(int(local_port, 16) == port for table in tables for local_port in _HANDSHAKE.findall(table))


def _sockets_on(port: int) -> Iterator[socket.socket]:
    for name in os.listdir(OPEN_FILES):
        if (sock := _open(name)) is None:
            continue
        with sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6) and _port(sock) == port:
                yield sock


def _open(descriptor: str) -> socket.socket | None:
    """Return a socket of the same connection as the descriptor, or None if that is no socket or is closed by now."""
    with suppress(OSError):
        if stat.S_ISSOCK(os.stat(f"{OPEN_FILES}/{descriptor}").st_mode):
            return socket.socket(fileno=os.dup(int(descriptor)))
    return None


def _port(sock: socket.socket) -> int:
    with suppress(OSError):
        return int(sock.getsockname()[1])
    return 0
