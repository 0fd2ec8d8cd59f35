"""Deadlines of requests over HTTP: every read and write of a connection gets what is left of its request's time.

httpx2 takes the longest time of a single read or write, so a server that sends a byte from time to time would keep a
client for ever. Here the timeout of a request is a time on the monotonic clock, by which all of it must be done.
"""

import time
from typing import Any

import httpx2

#: Longest time to connect, in seconds. Then it is tried again.
CONNECT_TIMEOUT_S = 5.0

#: Bytes that are written at a time, in one piece or several.
WRITE_BYTES = 2**16


def timeout_at(until: float) -> httpx2.Timeout:
    """Return the timeout of a request that ends at `until` on the monotonic clock, for a client `with_deadlines`."""
    return httpx2.Timeout(until, pool=max(0.001, until - time.monotonic()))


def with_deadlines(client: httpx2.Client) -> httpx2.Client:
    """Let the client, which is new, take times on the monotonic clock as timeouts; return it."""
    transports: list[Any] = [client._transport, *client._mounts.values()]
    for transport in transports:
        if transport is not None:  # None stands for the first of them
            transport._pool._network_backend = _Backend(transport._pool._network_backend)
    return client


class _Backend:
    """The source of a pool's connections."""

    def __init__(self, backend: Any):
        self._backend = backend

    def connect_tcp(self, host: str, port: int, timeout: float, **options: Any) -> "_Stream":
        """Return a connection to a server."""
        left_s = min(CONNECT_TIMEOUT_S, _left_s(timeout))
        return _Stream(self._backend.connect_tcp(host, port, timeout=left_s, **options))


class _Stream:
    """A connection, with or without TLS."""

    def __init__(self, stream: Any):
        self._stream = stream
        self.close = stream.close
        self.get_extra_info = stream.get_extra_info

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next bytes."""
        data: bytes = self._stream.read(max_bytes, timeout=_left_s(timeout))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send the bytes, a few at a time: a server may take them slowly."""
        for n in range(0, len(buffer), WRITE_BYTES):
            self._stream.write(buffer[n : n + WRITE_BYTES], timeout=_left_s(timeout))

    def start_tls(self, ssl_context: Any, server_hostname: str | None, timeout: float) -> "_Stream":
        """Return the connection with TLS."""
        left_s = min(CONNECT_TIMEOUT_S, _left_s(timeout))
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout=left_s))


def _left_s(until: float | None) -> float:
    """Return the seconds until `until`; raise ReadTimeout if there are none."""
    if until is None:  # greetings of SOCKS proxies have no timeout
        return CONNECT_TIMEOUT_S
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise httpx2.ReadTimeout("no complete answer in time")
    return left_s
