"""A TCP proxy that breaks connections on demand. Each process has its own link to Redis."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread

CHUNK_BYTES = 65_536

#: Modes of a link. `pass` mends it. `cut` ends its connections once; `refuse` ends them and all new ones. `swallow`
#: drops all bytes; connections that lost bytes are ended when the mode changes. `stall` keeps all bytes until the link
#: is mended. Three modes need a number: `delay` the seconds for which each piece is kept, `slow` the bytes a second on
#: each connection and in each direction, `tear` the share of the next reply that is passed on before the connection
#: ends.
MODES = ("pass", "cut", "refuse", "swallow", "stall", "delay", "slow", "tear")

#: Bytes that a slow link passes on at a time.
SLOW_BYTES = 4_096

_Pair = tuple[socket.socket, socket.socket]


class Link:
    """A listener on its own port that passes everything on to a port of loopback, until it is broken."""

    def __init__(self, target_port: int):
        self._target = ("127.0.0.1", target_port)
        self._mode, self._value = "pass", 0.0
        self._mended = Event()
        self._open: dict[_Pair, bool] = {}  # True if the pair lost bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads: list[Thread] = []
        self._start(self._accept)

    def set(self, mode: str, value: float = 0.0) -> None:
        """Break the link, or mend it."""
        self._mode, self._value = mode, value
        if mode == "pass":
            self._mended.set()
        else:
            self._mended.clear()
        for pair, has_lost in list(self._open.items()):
            if has_lost or mode in ("cut", "refuse"):
                self._end(pair)

    def close(self) -> None:
        """End all connections and accept no more."""
        with suppress(OSError):  # already closed
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.set("pass")
        self.set("cut")
        for thread in self._threads:
            thread.join(5)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = Thread(target=target, args=arguments, daemon=True)
        thread.start()
        self._threads = [*filter(Thread.is_alive, self._threads), thread]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                try:
                    if self._mode == "refuse":
                        raise ConnectionRefusedError
                    there = socket.create_connection(self._target)
                except OSError:
                    here.close()
                    continue
                self._open[here, there] = False
                self._start(self._pump, (here, there), here, there)
                self._start(self._pump, (here, there), there, here)

    def _pump(self, pair: _Pair, source: socket.socket, target: socket.socket) -> None:
        """Pass on the source's bytes until either side ends."""
        with suppress(OSError):
            while (data := source.recv(CHUNK_BYTES)) and pair in self._open:
                if self._mode == "swallow":
                    self._open[pair] = True
                    continue
                if self._mode == "stall":
                    self._mended.wait()
                elif self._mode == "delay":
                    time.sleep(self._value)
                elif self._mode == "slow":
                    self._send_slowly(target, data)
                    continue
                is_torn = self._mode == "tear" and target is pair[0]
                target.sendall(data[: int(len(data) * self._value)] if is_torn else data)
                if is_torn:
                    break
        self._end(pair)
        source.close()

    def _send_slowly(self, target: socket.socket, data: bytes) -> None:
        """Pass on the data at the speed of the link, or at once after the link is mended."""
        for start in range(0, len(data), SLOW_BYTES):
            piece = data[start : start + SLOW_BYTES]
            target.sendall(piece)
            if self._mode == "slow":
                time.sleep(len(piece) / self._value)

    def _end(self, pair: _Pair) -> None:
        self._open.pop(pair, None)
        for end in pair:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
