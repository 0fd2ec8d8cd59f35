"""An orderly stop: connections end with their next answer, and the server stops when none is left to be surprised.

Granian by itself would close connections on which nothing is being answered, though a request may be on its way, and a
second signal, or a connection that comes at the same instant, can make it wait for ever.
"""

import ctypes
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from shoal_api.server.sockets import listens, sockets_on

#: Longest that a process goes on with all its connections once it was told to stop.
DRAIN_S = 1.0

#: How long connections that were begun may take to be complete, when no others are let in any more.
SETTLE_S = 0.05

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_SO_ATTACH_FILTER = 26

#: A classic BPF program for packets to a listening socket, (code, jump if true, jump if false, value) each: it drops
#: those that only begin a connection (the TCP flags, byte 13, have SYN and no ACK).
_DROP_SYN = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


def when_told_to_stop(act: Callable[[], object]) -> None:
    """Calls `act` in a thread of its own at the first SIGTERM or SIGINT to this process; later ones do nothing.

    To be called before there are other threads: these, and processes that are forked, then leave the signals to it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def wait() -> None:
        signal.sigwait(_SIGNALS)
        act()

    threading.Thread(target=wait, daemon=True).start()


def drain(port: int) -> None:
    """Returns when nobody is connected to `port` of this process, or waits with those who are for `DRAIN_S`.

    Then it lets no new connection begin, so that none is cut off when the server stops to listen.
    """
    until = time.monotonic() + DRAIN_S
    while time.monotonic() < until and any(not listens(sock) for sock in sockets_on(port)):
        time.sleep(SETTLE_S)
    for sock in sockets_on(port):
        if listens(sock):
            _let_nobody_begin(sock)
    time.sleep(SETTLE_S)


def _let_nobody_begin(sock: socket.socket) -> None:
    """Drops what would begin a connection: its caller tries again by itself and is refused by then."""
    program = b"".join(struct.pack("HBBI", *step) for step in _DROP_SYN)
    steps = ctypes.create_string_buffer(program)
    with suppress(OSError):  # where the system does not have it
        sock.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(_DROP_SYN), ctypes.addressof(steps))
        )
