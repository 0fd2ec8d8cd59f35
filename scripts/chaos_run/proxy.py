"""A TCP proxy that breaks connections when told. Between each process and Redis there is a link of its own."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar

CHUNK_BYTES = 65_536

#: The link that programs use which put jobs into Redis themselves.
PRODUCERS = "producers"

#: Modes of a link. `pass` mends it. `cut` ends its connections once; `refuse` ends them and all new ones; `swallow`
#: takes everything and hands on nothing, and ends what lost bytes so; `stall` holds everything until it is mended;
#: `delay` holds each piece for so many seconds; `tear` hands on such a share of the next reply and ends the connection.
MODES = ("pass", "cut", "refuse", "swallow", "stall", "delay", "tear")

T = TypeVar("T")

_Pair = tuple[StreamWriter, StreamWriter]


class Link:
    """One way to Redis, and how it is broken now."""

    def __init__(self, target_port: int):
        self._target_port = target_port
        self._mode, self._value = "pass", 0.0
        self._mended = asyncio.Event()
        self._open: dict[_Pair, bool] = {}  # True if bytes were lost

    async def listen(self) -> asyncio.Server:
        """Listen on a free port of loopback."""
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def set(self, mode: str, value: float) -> None:
        """Break the link, or mend it."""
        self._mode, self._value = mode, value
        if mode == "pass":
            self._mended.set()
        else:
            self._mended.clear()
        for pair, has_lost in list(self._open.items()):
            if has_lost or mode in ("cut", "refuse"):
                self._end(pair)

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection until either side ends it."""
        try:
            if self._mode == "refuse":
                raise ConnectionRefusedError
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, target_writer)
        self._open[pair] = False
        await asyncio.gather(self._pump(pair, reader, target_writer), self._pump(pair, target_reader, writer, True))

    async def _pump(self, pair: _Pair, source: StreamReader, target: StreamWriter, is_reply: bool = False) -> None:
        with suppress(OSError):
            while (data := await source.read(CHUNK_BYTES)) and pair in self._open:
                if self._mode == "swallow":
                    self._open[pair] = True
                    continue
                if self._mode == "stall":
                    await self._mended.wait()
                elif self._mode == "delay":
                    await asyncio.sleep(self._value)
                is_torn = self._mode == "tear" and is_reply
                target.write(data[: int(len(data) * self._value)] if is_torn else data)
                await target.drain()
                if is_torn:
                    break
        self._end(pair, gently=target)

    def _end(self, pair: _Pair, gently: StreamWriter | None = None) -> None:
        """End both sides at once; bytes that were written `gently` still leave."""
        self._open.pop(pair, None)
        for writer in pair:
            if writer is gently:
                writer.close()
            else:
                writer.transport.abort()


class Proxy:
    """The links, served from a thread. `ports` has the port of each link by its name."""

    def __init__(self, target_port: int, names: Iterable[str]):
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._links = {name: Link(target_port) for name in names}
        self._servers = {name: self._run(link.listen()) for name, link in self._links.items()}
        self.ports: dict[str, int] = {name: each.sockets[0].getsockname()[1] for name, each in self._servers.items()}

    def order(self, link: str, mode: str, value: float = 0.0) -> None:
        """Break a link or mend it; returns when it is done."""
        self._run(self._links[link].set(mode, value))

    def close(self) -> None:
        """End all connections and the thread."""
        if not self._loop.is_closed():
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        for server in self._servers.values():
            server.close()
        for link in self._links.values():
            await link.set("pass", 0.0)
            await link.set("cut", 0.0)
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    def _run(self, step: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result()
