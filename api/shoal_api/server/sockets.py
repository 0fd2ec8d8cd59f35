"""The process's sockets on the port that it serves, and what the system tells about them, as Granian does not."""

import os
import re
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Folder with an entry for each file that the process has open.
OPEN_FILES = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"

#: Whether the system tells when data last came and went on a connection.
HAS_TCP_INFO = sys.platform == "linux"

#: The fields of `struct tcp_info` of Linux that `TcpInfo` has.
_TCP_INFO = struct.Struct("=B23xI16xI4xI72xQ")


#: The system's tables of TCP connections, of IPv4 and IPv6.
_CONNECTION_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))

#: A connection in these tables that a client has begun and not yet established, with its local port.
_HANDSHAKE = re.compile(r"^ *\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 03 ", re.MULTILINE)


class TcpInfo(NamedTuple):
    """The kernel's record of a connection, or of a listening socket."""

    #: 1 while the connection is open in both directions.
    state: int

    #: The number of segments on their way; of a listening socket, the number of connections not yet accepted.
    num_unacknowledged: int

    #: Milliseconds since data was last sent, or since the connection was made.
    sent_ms_ago: int

    #: Milliseconds since data was last received, or since the connection was made.
    received_ms_ago: int

    #: Number of bytes received.
    num_received_bytes: int


def connections_on(port: int) -> Iterator[socket.socket]:
    """Yield the connections on the port, each open until the next one is asked for.

    A socket that is bound to the port and connected to no client, such as Granian's own, is none.
    """
    return (sock for sock in _sockets_on(port) if _is_connected(sock))


def listeners_on(port: int) -> Iterator[socket.socket]:
    """Yield the sockets that take connections on the port, each open until the next one is asked for."""
    return (sock for sock in _sockets_on(port) if _is_listening(sock))


def has_handshakes(port: int) -> bool:
    """Return true if a client has begun to connect to the port of this machine and is not connected yet.

    No socket of the process shows such a client. False where the system does not tell.
    """
    tables = [table.read_text() for table in _CONNECTION_TABLES if table.exists()]
    return any(int(local_port, 16) == port for table in tables for local_port in _HANDSHAKE.findall(table))


def tcp_info(sock: socket.socket) -> TcpInfo:
    """Return the kernel's record of a socket, where it `HAS_TCP_INFO`."""
    return TcpInfo._make(_TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)))


def _sockets_on(port: int) -> Iterator[socket.socket]:
    for name in os.listdir(OPEN_FILES):
        if (sock := _open(name)) is None:
            continue
        with sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6) and _port(sock) == port:
                yield sock


def _is_listening(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _is_connected(sock: socket.socket) -> bool:
    with suppress(OSError):
        return bool(sock.getpeername())
    return False


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
