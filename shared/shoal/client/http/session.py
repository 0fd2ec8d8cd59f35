"""Requests to an API over HTTP, with persistent connections, repeated attempts and deadlines."""

import os
import random
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import RLock
from typing import Any, BinaryIO

import httpx2

from shoal import __version__
from shoal.client.http.answer import JSON, MSGPACK, Answer
from shoal.contract import traceparent
from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, ShoalError, Unavailable

#: Longest time of a call, in seconds. The system refuses far longer ones, such as infinity.
MAX_CALL_S = 86_400.0

#: Longest time of one attempt to connect, in seconds.
CONNECT_TIMEOUT_S = 5.0

#: Largest number of bytes that are written at a time.
WRITE_BYTES = 2**16

#: Size limit of an answer, in bytes. No API sends a larger answer to a client's questions.
MAX_ANSWER_BYTES = 2**28

#: Pause before the second attempt, in seconds, and longest pause. The pause doubles with each attempt. An answer may
#: ask for a longer pause.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 2.0

#: Largest jitter, as a share of the pause. Without jitter, clients that were refused together would return together.
JITTER = 0.25

#: Statuses after which the same request may succeed a little later.
_TRANSIENT = (429, 503)

#: Headers of every request.
_HEADERS = {
    "Accept": f"{MSGPACK}, {JSON};q=0.5",
    "Accept-Encoding": "identity",
    "Content-Type": MSGPACK,
    "User-Agent": f"shoal/{__version__}",
}

#: An API key consists of these characters.
_KEY = re.compile("[!-~]*")


class HttpSession:
    """Connections to one API, separate in each process. Thread-safe. Raises InvalidRequest for a wrong URL or key."""

    def __init__(self, url: str, key: str, **options: Any):
        if not _KEY.fullmatch(key):
            raise InvalidRequest("the key has a space, a line end or another character that no key has: remove it")
        #: The URL of the API, without a slash at its end.
        self.url = _check_url(url)
        verify, trust_env = options.get("verify", True), options.get("trust_env", True)
        self._options = options | {"base_url": self.url}
        self._options["verify"] = httpx2.create_ssl_context(verify, trust_env=trust_env)  # once, because it is slow
        headers = _HEADERS | ({"Authorization": f"Bearer {key}"} if key else {})
        self._options["headers"] = httpx2.Headers(headers)  # `Headers` hides the key in its `repr`
        self._clients: dict[int, httpx2.Client] = {}
        self._num_closed = 0
        self._client()

    def close(self) -> None:
        """Close the connections of this process. Requests under way fail, and a later request opens new connections."""
        self._num_closed += 1
        if client := self._clients.pop(os.getpid(), None):
            client.close()

    def ask(
        self,
        method: str,
        path: str,
        until: float,
        body: bytes | BinaryIO | None = None,
        headers: dict[str, str] | None = None,
        pause: Callable[[float], object] = time.sleep,
        sink: BinaryIO | None = None,
    ) -> Answer:
        """Send a request that may be repeated, and return its answer.

        The request is sent again after 429, 503 and connection errors, until `until` on the monotonic clock. `pause` is
        called with the seconds to wait before another attempt, and returns true to give up. If `sink` is given, the
        body of a successful answer is written into it and may have any size. Raises the error in the answer,
        Unavailable if Shoal does not answer, and TimeoutError.
        """
        pause_s, until, num_closed = FIRST_PAUSE_S, min(until, time.monotonic() + MAX_CALL_S), self._num_closed
        trace = {"Traceparent": found} if (found := traceparent.current()) else {}
        request = {"method": method, "url": path, "content": body, "headers": trace | (headers or {})}
        while True:
            wait_s = pause_s
            try:
                answer = self._send(request, until, sink)
            except (httpx2.TransportError, RuntimeError) as cause:  # RuntimeError: another thread has closed the client
                if isinstance(cause, httpx2.TimeoutException) and time.monotonic() >= until:
                    raise TimeoutError from cause
                reason = str(cause) or type(cause).__name__
                words = f"{self.url} does not answer ({reason}): check that the API runs and that the URL is right"
                error: ShoalError = Unavailable(words)
                error.__cause__ = cause
                if _is_lasting(cause) or self._num_closed != num_closed:
                    raise error from cause
            else:
                if (refusal := answer.error()) is None:
                    return answer
                if answer.status not in _TRANSIENT:
                    raise refusal
                error, wait_s = refusal, max(wait_s, answer.retry_after_s)
            wait_s *= random.uniform(1, 1 + JITTER)  # noqa: S311 - no secret
            if time.monotonic() + wait_s >= until or pause(wait_s):
                raise error
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)

    def _send(self, request: Mapping[str, Any], until: float, sink: BinaryIO | None) -> Answer:
        """Send a request once, and return its complete answer."""
        timeout = httpx2.Timeout(until, pool=max(0.001, until - time.monotonic()))  # `_Stream` reads it as a deadline
        data, body = bytearray(), request["content"]
        if body and not isinstance(body, bytes):
            body.seek(0)
        with self._client().stream(**request, timeout=timeout) as response:
            if sink and response.status_code == 200:
                sink.seek(0)
                sink.truncate()
                for chunk in response.iter_raw():
                    sink.write(chunk)
                return Answer(self.url, response.status_code, response.headers, b"")
            for chunk in response.iter_raw():
                data += chunk
                if len(data) > MAX_ANSWER_BYTES:
                    raise Unavailable(
                        f"{self.url} answers with over {MAX_ANSWER_BYTES:,} bytes, the limit of a client: check the "
                        "URL, or ask for less at a time"
                    )
        return Answer(self.url, response.status_code, response.headers, bytes(data))

    def _client(self) -> httpx2.Client:
        """Return the connections of this process. A forked process opens its own."""
        process = os.getpid()
        if client := self._clients.get(process):
            return client
        client = httpx2.Client(**self._options)
        transports: list[Any] = [client._transport, *client._mounts.values()]
        for transport in transports:
            if transport is not None:  # None stands for the default transport
                transport._pool._network_backend = _Backend(transport._pool._network_backend)
        return self._clients.setdefault(process, client)


class _Backend:
    """The backend that opens a pool's connections. Its timeouts are deadlines on the monotonic clock."""

    def __init__(self, backend: Any):
        self._backend = backend

    def connect_tcp(self, host: str, port: int, timeout: float, **options: Any) -> "_Stream":
        """Return a connection to a server."""
        left_s = min(CONNECT_TIMEOUT_S, _left_s(timeout))
        return _Stream(self._backend.connect_tcp(host, port, timeout=left_s, **options))


class _Stream:
    """A connection whose timeouts are deadlines. httpx2's own timeouts begin anew with each byte that arrives."""

    def __init__(self, stream: Any):
        self._stream = stream
        # Without the lock, a thread could read from a new socket that got the descriptor of the closed one.
        self._use = RLock()
        self.get_extra_info = stream.get_extra_info

    def close(self) -> None:
        """Close the connection. A thread that uses it gets an error at once, because the shutdown wakes it."""
        with suppress(OSError):  # the connection has ended already
            socket.socket.shutdown(self.get_extra_info("socket"), socket.SHUT_RDWR)
        with self._use:
            self._stream.close()

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next bytes; raise ReadTimeout after the deadline."""
        with self._use:
            data: bytes = self._stream.read(max_bytes, timeout=_left_s(timeout))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send the bytes, a few at a time, because a server may read them slowly."""
        with self._use:
            for n in range(0, len(buffer), WRITE_BYTES):
                self._stream.write(buffer[n : n + WRITE_BYTES], timeout=_left_s(timeout))

    def start_tls(self, ssl_context: Any, server_hostname: str | None, timeout: float) -> "_Stream":
        """Return the connection with TLS."""
        left_s = min(CONNECT_TIMEOUT_S, _left_s(timeout))
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout=left_s))


def _left_s(until: float | None) -> float:
    """Return the seconds until the deadline; raise ReadTimeout if it has passed."""
    if until is None:  # httpx2 passes no timeout for the handshake with a SOCKS proxy
        return CONNECT_TIMEOUT_S
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise httpx2.ReadTimeout("no complete answer in time")
    return left_s


def _is_lasting(cause: BaseException | None) -> bool:
    """Return True if no later attempt can succeed, because the host name is unknown or the certificate is wrong."""
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError | httpx2.LocalProtocolError):
            return True
        if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
            return True
        cause = cause.__context__  # httpcore sets no `__cause__`
    return False


def _check_url(url: str) -> str:
    """Return the URL without a slash at its end; raise InvalidRequest if it cannot be the URL of an API."""
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError):
        parsed = httpx2.URL("")
    if parsed.userinfo:
        raise InvalidRequest("the URL has a user name or a password, which no API takes: give the API's key as `key`")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise InvalidRequest(f"url is {excerpt(url)}: it takes one such as http://localhost:8080")
    return str(parsed).rstrip("/")
