"""The process's sockets on the port that it serves, from the system, as Granian does not give access to them."""

import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

#: Folder with an entry for each file that the process has open.
_OPEN_FILES = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"

#: Whether the system tells when data last came and went on a connection.
HAS_TCP_INFO = sys.platform == "linux"

#: Where `struct tcp_info` of Linux has the number of connections that a listening socket has not accepted yet.
_UNACCEPTED = struct.Struct("=24xI")


def connections_on(port: int) -> Iterator[socket.socket]:
    """Yield the connections on the port, each open until the next one is asked for."""
    return (sock for sock in _sockets_on(port) if not _is_listening(sock))


def listeners_on(port: int) -> Iterator[socket.socket]:
    """Yield the sockets that take connections on the port, each open until the next one is asked for."""
    return (sock for sock in _sockets_on(port) if _is_listening(sock))


def has_unaccepted(port: int) -> bool:
    """Return true if clients have connected to the port and the process has not accepted their connections yet."""
    return HAS_TCP_INFO and any(_num_unaccepted(listener) for listener in listeners_on(port))


def _num_unaccepted(listener: socket.socket) -> int:
    info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACCEPTED.size)
    return int(_UNACCEPTED.unpack(info)[0])


def _sockets_on(port: int) -> Iterator[socket.socket]:
    for name in os.listdir(_OPEN_FILES):
        if (sock := _open(name)) is None:
            continue
        with sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6) and _port(sock) == port:
                yield sock


def _is_listening(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _open(descriptor: str) -> socket.socket | None:
    """Return a socket of the same connection as the descriptor, or None if that is no socket or is closed by now."""
    with suppress(OSError):
        if stat.S_ISSOCK(os.stat(f"{_OPEN_FILES}/{descriptor}").st_mode):
            return socket.socket(fileno=os.dup(int(descriptor)))
    return None


def _port(sock: socket.socket) -> int:
    with suppress(OSError):
        return int(sock.getsockname()[1])
    return 0
