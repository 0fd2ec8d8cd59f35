"""The application as Granian calls it: a coroutine for each request, by RSGI, in the server's event loop."""

import asyncio
import fcntl
import logging
import socket
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast
from weakref import WeakValueDictionary

from granian.rsgi import HTTPProtocol, ProtocolClosed, Scope  # type: ignore[attr-defined]

from shoal.errors import InvalidRequest
from shoal.process import logs
from shoal_api.answers.response import LARGE_BYTES, FileResponse, WholeResponse
from shoal_api.request import BODY
from shoal_api.server.async_flask import AsyncFlask
from shoal_api.server.shutdown import OPEN_FILES, connections_on, listeners_on

#: Age from which a request is watched for the disconnection of its client, in seconds.
WATCH_AFTER_S = 1.0

#: Seconds between two checks of whether the client has read a large response.
LOOK_EVERY_S = 0.05

#: Number of checks in a row that must find nothing left to send before a response counts as read. A file stays open for
#: longer, because Granian opens it again a moment later.
QUIET_LOOKS, QUIET_LOOKS_OF_FILE = 2, 20

#: The entries of Flask's environment that are the same for all requests.
_ENVIRONMENT = {"SCRIPT_NAME": "", "wsgi.input_terminated": True, "SERVER_SOFTWARE": "Granian"}

_log = logging.getLogger(__name__)


class BlockingBody:
    """The body of an upload: the event loop receives it, and a thread reads it."""

    def __init__(self, protocol: HTTPProtocol, loop: asyncio.AbstractEventLoop, timeout_s: float):
        self._protocol, self._loop, self._timeout_s = protocol, loop, timeout_s
        self._pieces: AsyncIterator[bytes] | None = None
        self._rest, self._is_over = b"", False

    def read(self, num_bytes: int) -> bytes:
        """Return `num_bytes` bytes, or fewer at the end; b"" if the connection breaks or `timeout_s` passes."""
        if len(self._rest) < num_bytes and not self._is_over:
            coming = asyncio.run_coroutine_threadsafe(self._filled(self._rest, num_bytes), self._loop)
            try:
                self._rest = coming.result(self._timeout_s)
            except (TimeoutError, ProtocolClosed):
                coming.cancel()
                self._rest = b""
            self._is_over = len(self._rest) < num_bytes
        found, self._rest = self._rest[:num_bytes], self._rest[num_bytes:]
        return found

    async def _filled(self, found: bytes, num_bytes: int) -> bytes:
        self._pieces = self._pieces or aiter(self._protocol)  # after this, Granian gives the body to no other reader
        while len(found) < num_bytes and (piece := await anext(self._pieces, b"")):
            found += piece
        return found


class RsgiServer:
    """Answers the requests to the port of this process. A client that stops reading for `timeout_s` is cut off."""

    def __init__(self, app: AsyncFlask, port: int, timeout_s: float):
        self._app = app
        self._port = port
        self._timeout_s = timeout_s
        #: For each client that is reading a large response, the event that the client's next request sets.
        self._sending = WeakValueDictionary[str, asyncio.Event]()
        broken = InvalidRequest("the body is incomplete: send all of it")
        app.register_error_handler(ProtocolClosed, lambda _: app.handle_user_exception(broken))
        #: The event loop, once it runs.
        self.loop: asyncio.AbstractEventLoop | None = None

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Prepare the sockets, as soon as the loop runs."""
        loop.call_soon(self._begin, loop)

    async def __rsgi__(self, scope: Scope, protocol: HTTPProtocol) -> None:
        """Answer a request."""
        if earlier := self._sending.pop(scope.client, None):
            earlier.set()  # the client sends a new request, so it has read the response
        task, watching = cast("asyncio.Task[None]", asyncio.current_task()), list[asyncio.Task[None]]()
        watch = asyncio.get_running_loop().call_later(
            WATCH_AFTER_S, lambda: watching.append(asyncio.create_task(_watch(protocol, task)))
        )
        try:
            response = await self._app.respond(self._environment(scope, protocol))
        except asyncio.CancelledError:
            protocol.response_empty(499, [])  # the client has disconnected
            return
        except Exception as error:
            _log.error("a request failed: %s", logs.places(error))
            protocol.response_empty(500, [])
            return
        finally:
            watch.cancel()
            for each in watching:
                each.cancel()
        try:
            await self._send(cast(WholeResponse, response), scope, protocol)
        finally:
            response.close()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        for listener in listeners_on(self._port):
            with suppress(OSError, AttributeError):  # some systems lack this option
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._timeout_s * 1_000))

    def _environment(self, scope: Scope, protocol: HTTPProtocol) -> dict[str, Any]:
        """Return the request in the form that Flask reads."""
        host, _, port = scope.server.rpartition(":")
        environ: dict[str, Any] = {
            **_ENVIRONMENT,
            "REQUEST_METHOD": scope.method,
            "PATH_INFO": scope.path.encode().decode("latin-1"),
            "QUERY_STRING": scope.query_string.encode().decode("latin-1"),
            "SERVER_NAME": host,
            "SERVER_PORT": port,
            "SERVER_PROTOCOL": f"HTTP/{scope.http_version}",
            "REMOTE_ADDR": scope.client.rpartition(":")[0].strip("[]"),
            "wsgi.url_scheme": scope.scheme,
            BODY: protocol,
        }
        named = scope.headers.items()
        unread = set(scope.headers.keys()).difference(dict(named))  # `items` lacks values that are not ASCII
        for name, value in [*named, *dict.fromkeys(unread, "").items()]:
            if "_" not in name:  # otherwise the header `X_A` would set the same key as `X-A`
                key = "HTTP_" + name.upper().replace("-", "_")
                environ[key] = f"{environ[key]},{value}" if key in environ else value
        if scope.query_string and self.loop:  # the query may have the name of an upload
            environ["wsgi.input"] = BlockingBody(protocol, self.loop, self._timeout_s)
        for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            if (value := environ.pop(f"HTTP_{name}", None)) is not None:
                environ[name] = value
        return environ

    async def _send(self, response: WholeResponse, scope: Scope, protocol: HTTPProtocol) -> None:
        """Send the response. A large response is sent before this returns, any other response soon after."""
        status, head = response.status_code, response.head()
        if scope.method == "HEAD" or status in (204, 304):
            protocol.response_empty(status, head)
        elif isinstance(response, FileResponse):
            protocol.response_file(status, head, f"{OPEN_FILES}/{response.file.fileno()}")
            await self._wait_until_read(scope, QUIET_LOOKS_OF_FILE)
        else:
            data = response.get_data()
            protocol.response_bytes(status, head, data)
            if len(data) > LARGE_BYTES:
                del data
                response.response = []  # freed, because the server has a copy
                await self._wait_until_read(scope)

    async def _wait_until_read(self, scope: Scope, quiet_looks: int = QUIET_LOOKS) -> None:
        """Return once the client has read its response, or has disconnected, as far as the system can say."""
        read = self._sending[scope.client] = asyncio.Event()
        # `dup` would make the connection a blocking one for Granian too, and its next write would hold up all clients.
        own = (socket.socket(fileno=each.detach()) for each in connections_on(self._port) if _is_to(each, scope))
        if (found := await asyncio.to_thread(next, own, None)) is None:
            return
        with found as connection:
            num_quiet = 0
            while num_quiet < quiet_looks and _is_to(connection, scope) and not read.is_set():
                await asyncio.sleep(LOOK_EVERY_S)
                num_quiet = 0 if _num_unsent_bytes(connection) else num_quiet + 1


async def _watch(protocol: HTTPProtocol, task: asyncio.Task[None]) -> None:
    """Cancel the task once the client has disconnected."""
    await protocol.client_disconnect()
    task.cancel()


def _is_to(connection: socket.socket, scope: Scope) -> bool:
    """Return True if the connection is open, and leads to the client of the request."""
    with suppress(OSError):
        host, port = connection.getpeername()[:2]
        return scope.client in (f"{host}:{port}", f"[{host}]:{port}")
    return False


def _num_unsent_bytes(connection: socket.socket) -> int:
    """Return the number of bytes that the client has not received yet, or 0 if the system cannot say."""
    with suppress(OSError):
        return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0" * 4))[0])
    return 0
