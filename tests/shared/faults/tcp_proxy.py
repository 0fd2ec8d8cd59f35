"""A TCP proxy. Its target can change, as in a failover, and its traffic can be held back or slowed."""

import contextlib
import math
import socket
import threading
import time
from types import TracebackType
from typing import Self

#: Largest overrun of a pause that the next pause makes up for, in seconds. On a busy machine, pauses overrun.
MAX_LATE_S = 0.25


class Proxy:
    """A listener on a port of loopback that passes all data on to the target port.

    With `bytes_per_s`, each direction of a connection passes at most this many bytes in a second. With `max_bytes`, a
    connection breaks once this many bytes were sent over it.
    """

    def __init__(self, target_port: int, bytes_per_s: float = math.inf, max_bytes: float = math.inf):
        self.target_port = target_port
        self._bytes_per_s = bytes_per_s
        self._max_bytes = max_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._flows = threading.Event()
        self._flows.set()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.release()
        self.cut()

    def switch(self, port: int) -> None:
        """Forward new connections to another target. Open connections keep their target."""
        self.target_port = port

    def cut(self) -> None:
        """Break the open connections."""
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def num_open(self) -> int:
        """Return the number of open sockets: two for each connection."""
        return len(self._sockets)

    def hold(self) -> None:
        """Hold back all data until `release`."""
        self._flows.clear()

    def release(self) -> None:
        """Let all data through again."""
        self._flows.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                try:
                    there = socket.create_connection(("127.0.0.1", self.target_port))
                except OSError:
                    here.close()
                    continue
                self._sockets |= {here, there}
                for ends in ((here, there, self._max_bytes), (there, here, math.inf)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, max_bytes: float) -> None:
        pause, due = threading.Event(), time.monotonic()
        with contextlib.suppress(OSError):
            while (data := source.recv(65_536)) and (max_bytes := max_bytes - len(data)) > 0:
                self._flows.wait()
                due = max(due, time.monotonic() - MAX_LATE_S) + len(data) / self._bytes_per_s
                pause.wait(due - time.monotonic())
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._sockets.discard(source)
        source.close()
