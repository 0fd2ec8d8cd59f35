"""A TCP proxy that breaks connections when told: `proxy.py TARGET_PORT NAME=PORT ...`, orders on standard input.

Between each process and Redis there is a link of its own. An order is a line of JSON: the link, a mode, and a number.
`done` on standard output says that it was followed.
"""

import asyncio
import json
import sys
from asyncio import StreamReader, StreamWriter
from contextlib import suppress

CHUNK_BYTES = 65_536

#: The link that programs use which put jobs into Redis themselves.
PRODUCERS = "producers"

#: Modes of a link. `pass` mends it. `cut` ends its connections once; `refuse` ends them and all new ones; `swallow`
#: takes everything and hands on nothing, and ends what lost bytes so; `stall` holds everything until it is mended;
#: `delay` holds each piece for so many seconds; `tear` hands on such a share of the next reply and ends the connection.
MODES = ("pass", "cut", "refuse", "swallow", "stall", "delay", "tear")


class Link:
    """One way to Redis, and how it is broken now."""

    def __init__(self, target_port: int):
        self._target_port = target_port
        self._mode, self._value = "pass", 0.0
        self._mended = asyncio.Event()
        self._open: dict[tuple[StreamWriter, StreamWriter], bool] = {}

    def set(self, mode: str, value: float) -> None:
        """Breaks the link, or mends it."""
        self._mode, self._value = mode, value
        if mode == "pass":
            self._mended.set()
        else:
            self._mended.clear()
        for pair, has_lost in list(self._open.items()):
            if has_lost or mode in ("cut", "refuse"):
                self._end(pair)

    async def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serves one connection until either side ends it."""
        if self._mode == "refuse":
            writer.transport.abort()
            return
        try:
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, target_writer)
        self._open[pair] = False
        pumps = (self._pump(pair, reader, target_writer), self._pump(pair, target_reader, writer, is_reply=True))
        await asyncio.gather(*pumps)

    async def _pump(
        self,
        pair: tuple[StreamWriter, StreamWriter],
        source: StreamReader,
        target: StreamWriter,
        is_reply: bool = False,
    ) -> None:
        with suppress(OSError):
            while (data := await source.read(CHUNK_BYTES)) and pair in self._open:
                if self._mode == "swallow":
                    self._open[pair] = True
                    continue
                if self._mode == "stall":
                    await self._mended.wait()
                elif self._mode == "delay":
                    await asyncio.sleep(self._value)
                elif self._mode == "tear" and is_reply:
                    target.write(data[: int(len(data) * self._value)])
                    await target.drain()
                    target.close()
                    break
                target.write(data)
                await target.drain()
        self._end(pair, gently=target)

    def _end(self, pair: tuple[StreamWriter, StreamWriter], gently: StreamWriter | None = None) -> None:
        """Ends both sides at once; what was written `gently` still leaves."""
        self._open.pop(pair, None)
        for writer in pair:
            if writer is gently:
                writer.close()
            else:
                writer.transport.abort()


async def main(target_port: str, *links: str) -> None:
    """Serves until standard input ends."""
    named = dict(link.split("=") for link in links)
    running = {name: Link(int(target_port)) for name in named}
    for name, port in named.items():
        await asyncio.start_server(running[name].accept, "127.0.0.1", int(port))
    orders = StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    print("ready", flush=True)
    while line := await orders.readline():
        order = json.loads(line)
        running[order["link"]].set(order["mode"], order["value"])
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
