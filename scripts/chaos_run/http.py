"""The connection of one client to the APIs."""

import json
import socket
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any

from shoal.errors import BY_CODE

#: Longer than an API lets a request wait.
TIMEOUT_S = 20.0

#: How long a client that leaves waits for its answer.
LEAVES_AFTER_S = 0.03


class NoAnswer(Exception):
    """A failed connection: it is not known whether the request was read."""


class Http:
    """One thread's connection to one of the APIs, and to the next one when it fails."""

    def __init__(self, ports: Sequence[int]):
        self._ports = ports
        self._num_tries = 0
        self._connection: HTTPConnection | None = None

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return the status and the body of the answer.

        Raises NoAnswer, and the ShoalError that an answer carries.
        """
        try:
            response = self._send(method, path, body, headers).getresponse()
            found = json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            raise NoAnswer(type(error).__name__) from error
        if response.status >= 300:
            raise BY_CODE[found["error"]["code"]](found["error"]["message"])
        return response.status, found

    def leave(self, path: str, body: Any) -> None:
        """Send a request and close the connection before the answer."""
        with suppress(OSError, HTTPException):
            connection = self._send("POST", path, body, {})
            connection.sock.settimeout(LEAVES_AFTER_S)
            connection.sock.recv(1, socket.MSG_PEEK)
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> HTTPConnection:
        if self._connection is None:
            self._num_tries += 1
            port = self._ports[self._num_tries % len(self._ports)]
            self._connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        sent = {"content-type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
        self._connection.request(method, path, None if body is None else json.dumps(body), sent)
        return self._connection
