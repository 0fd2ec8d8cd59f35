"""The connection of one client to the APIs."""

import json
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from itertools import cycle
from typing import Any

from chaos_run.answers import K
from chaos_run.cases import Case
from shoal.errors import BY_CODE

#: Time limit of a request in seconds, longer than an API lets a request wait.
TIMEOUT_S = 20.0

#: Bytes that a slow reader reads at a time, and size of its system's buffer.
PIECE_BYTES = 32_768

#: Seconds that a client waits for its answer before it leaves.
LEAVES_AFTER_S = 0.03


class Http:
    """One thread's connection from an address to one of the APIs, and to the next API when it fails.

    `pause_s` is the pause after each piece of an answer.

    Every method except `leave` raises the ShoalError in an answer, and ConnectionError without an answer, even though
    the API may have read the request.
    """

    def __init__(self, ports: Iterable[int], address: str):
        own = (address, 0)
        self._connections = cycle([HTTPConnection("127.0.0.1", port, TIMEOUT_S, own) for port in ports])
        self.pause_s = 0.0
        self._connection = next(self._connections)

    def wait(self, case: Case) -> Any:
        """Return the vectors or hits of the case."""
        path, asked = _request(case)
        _, body = self.ask("POST", path, asked)
        return body["results"] if case.op == "search" else body

    def submit(self, case: Case) -> str:
        """Return the id of the case's job, which is the same at every submit."""
        job = {"op": case.op, "lane": case.lane, **_request(case)[1]}
        return str(self.ask("POST", "/v1/jobs", job, Idempotency_Key=f"case-{case.number}")[1]["id"])

    def fetch(self, case: Case, job_id: str) -> Any:
        """Return the vectors or hits of the job, or None while there are none."""
        status, body = self.ask("GET", f"/v1/jobs/{job_id}/result?wait=5")
        return body["results" if case.op == "search" else "embeddings"] if status == 200 else None

    def leave(self, case: Case) -> None:
        """Send the case, and close the connection before the answer."""
        with suppress(OSError, HTTPException):
            self._send("POST", *_request(case), {})
            self._connection.sock.settimeout(LEAVES_AFTER_S)
            self._connection.sock.recv(1, socket.MSG_PEEK)
        self.close()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return the status and the body of the answer."""
        try:
            self._send(method, path, body, headers)
            response = self._connection.getresponse()
            found = json.loads(self._read(response) if self.pause_s else response.read())
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            raise ConnectionError(type(error).__name__) from error
        if response.status >= 300:
            raise BY_CODE[found["error"]["code"]](found["error"]["message"])
        return response.status, found

    def close(self) -> None:
        """Close the connection; the next request opens one to the next API."""
        self._connection.close()
        self._connection = next(self._connections)

    def _read(self, response: HTTPResponse) -> bytes:
        data = b""
        while piece := response.read(PIECE_BYTES):
            data += piece
            time.sleep(self.pause_s)
        return data

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> None:
        sent = {"content-type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
        if self.pause_s:
            self._connection.close()
            self._connection.connect()
            self._connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE_BYTES)
        self._connection.request(method, path, None if body is None else json.dumps(body), sent)


def _request(case: Case) -> tuple[str, dict[str, Any]]:
    if case.op == "search":
        return "/search", {"queries": case.texts, "k": K}
    return "/embed", {"inputs": case.texts, "output": case.output}
