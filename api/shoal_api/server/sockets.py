"""This process's sockets on the port that it serves: the server below keeps them to itself, but the system has them."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress


def sockets_on(port: int) -> Iterator[socket.socket]:
    """The sockets on the port, those that listen too, each open until the next one is asked for."""
    for name in os.listdir("/proc/self/fd"):
        if (sock := _opened(name)) is None:
            continue
        with sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6) and _port(sock) == port:
                yield sock


def listens(sock: socket.socket) -> bool:
    """Whether it takes connections, and is none itself."""
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _opened(name: str) -> socket.socket | None:
    """The socket that the process's open file of that name is, if it is one and still there."""
    with suppress(OSError):
        if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
            return socket.socket(fileno=os.dup(int(name)))
    return None


def _port(sock: socket.socket) -> int:
    with suppress(OSError):
        return int(sock.getsockname()[1])
    return 0
