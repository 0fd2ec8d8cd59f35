"""Shutdown without losing a request: connections end with their next response, and then the server stops.

Granian by itself closes connections on which nothing is being answered, though a request may be on its way. A second
signal, or a connection that comes at the same instant, can make it wait for ever.
"""

import fcntl
import signal
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from shoal_api.server.sockets import HAS_TCP_INFO, connections_on, has_handshakes, listeners_on, tcp_info

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
    while time.monotonic() < until_s and not _is_drained(port):
        time.sleep(SETTLE_S)


def _is_drained(port: int) -> bool:
    """Return true if no client is connected or about to be, but for idle ones.

    The order is the order of a connection's life, so one that moves on meanwhile is seen at its next stage.
    """
    return not (has_handshakes(port) or _has_unaccepted(port)) and all(map(_is_idle, connections_on(port)))


def _has_unaccepted(port: int) -> bool:
    """Return true if clients have connected to the port whose connections the process has not accepted yet."""
    return HAS_TCP_INFO and any(tcp_info(listener).num_unacknowledged for listener in listeners_on(port))


def _is_idle(connection: socket.socket) -> bool:
    """Return true if no data came or went for `IDLE_S` and none waits to be read; false if the system does not tell.

    A connection on which nothing has come yet is not idle: its first request is on its way.
    """
    if not HAS_TCP_INFO:
        return False
    num_unread_bytes = struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, b"\0" * 4))[0]
    info = tcp_info(connection)
    is_quiet = info.num_received_bytes > 0 and min(info.sent_ms_ago, info.received_ms_ago) > IDLE_S * 1_000
    return is_quiet and num_unread_bytes == 0


def _refuse_new_connections(listener: socket.socket) -> None:
    """Let the system refuse new connections, while those that have begun are established and can still be accepted.

    It needs no privilege, but only once: the next process that shares the listener may be told that it may not.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX, _NO_INTERFACE)
