"""The ways over HTTP: to wait for the answer, to submit and fetch it, to cancel, and to hang up."""

import json
import socket
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from threading import local
from typing import Any

from chaos_run.answers import K
from chaos_run.cases import Case
from chaos_run.patience import Patience

#: Longer than an API lets a request wait.
TIMEOUT_S = 20.0

#: One in so many is submitted a second time with the same key, for no reason.
ASKED_AGAIN = 10

#: How long a client that leaves waits for its answer.
LEAVES_AFTER_S = 0.03


class NoAnswer(Exception):
    """The connection failed, so nobody knows whether the request was heard."""


class Http:
    """One thread's connection to one of the APIs, and to the next one when it fails."""

    def __init__(self, ports: Sequence[int]):
        self._ports = ports
        self._num_tries = 0
        self._connection: HTTPConnection | None = None

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """The status and the body of the answer.

        Raises NoAnswer.
        """
        sent = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
        connection = self.connected()
        try:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:
            self.close()
            raise NoAnswer(type(error).__name__) from error

    def connected(self) -> HTTPConnection:
        """The connection, which opens at its first request."""
        if self._connection is None:
            self._num_tries += 1
            port = self._ports[self._num_tries % len(self._ports)]
            self._connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        return self._connection

    def close(self) -> None:
        """Hangs up."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class HttpWays:
    """Asks cases over HTTP. Thread-safe: each thread has a connection of its own."""

    def __init__(self, ports: Sequence[int], patience: Patience):
        self._ports = ports
        self._patience = patience
        self._mine = local()

    def wait(self, case: Case) -> bool:
        """Asks and waits for the answer, again and again."""
        return self._patience.until(lambda: self._waited(case))

    def submit(self, case: Case) -> bool:
        """Submits with an idempotency key, so that the job is one job however often that is tried, and fetches."""
        job_id = self._submitted(case)
        if case.number % ASKED_AGAIN == 0 and (again := self._submitted(case)) and again != job_id:
            self._patience.ledger.breach(f"case {case.number}: one idempotency key made jobs {job_id} and {again}")
        return bool(job_id) and self._patience.until(lambda: self._fetched(case, job_id))

    def cancel(self, case: Case) -> bool:
        """Submits and cancels; whether that came in time or not, there is an answer."""
        if not (job_id := self._submitted(case)):
            return False
        try:
            self._http.ask("DELETE", f"/v1/jobs/{job_id}")
        except NoAnswer as error:
            self._patience.ledger.refuse(f"cancel: {error}")
        return self._patience.until(lambda: self._fetched(case, job_id))

    def leave(self, case: Case) -> bool:
        """Asks and hangs up before the answer."""
        path, body = _waiting_request(case)
        with suppress(OSError, HTTPException):
            connection = self._http.connected()
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            connection.sock.settimeout(LEAVES_AFTER_S)
            connection.sock.recv(1, socket.MSG_PEEK)
        self._http.close()
        return True

    @property
    def _http(self) -> Http:
        if not hasattr(self._mine, "http"):
            self._mine.http = Http(self._ports)
        http: Http = self._mine.http
        return http

    def _waited(self, case: Case) -> bool:
        found = self._asked(case, "wait", "POST", *_waiting_request(case))
        if isinstance(found, bool):
            return found
        _, body = found
        self._patience.ledger.answer(
            case, self._patience.answers.wrong(case, body["results"] if case.op == "search" else body)
        )
        return True

    def _submitted(self, case: Case) -> str:
        """The id of the job, or none if it is time to give up."""
        ids: list[str] = []
        self._patience.until(lambda: self._posted(case, ids))
        return ids[0] if ids else ""

    def _posted(self, case: Case, ids: list[str]) -> bool:
        body: dict[str, Any] = {
            "op": case.op,
            "lane": case.lane,
            "inputs" if case.op == "embed" else "queries": case.texts,
        }
        body |= {"k": K} if case.op == "search" else {}
        found = self._asked(case, "submit", "POST", "/v1/jobs", body, Idempotency_Key=f"case-{case.number}")
        if isinstance(found, bool):
            return found
        ids.append(found[1]["id"])
        self._patience.ledger.accept(case, ids[0])
        return True

    def _fetched(self, case: Case, job_id: str) -> bool:
        found = self._asked(case, "fetch", "GET", f"/v1/jobs/{job_id}/result?wait=5")
        if isinstance(found, bool):
            return found
        status, body = found
        if status == 200:
            answer = body["results"] if case.op == "search" else body["embeddings"]
            self._patience.ledger.answer(case, self._patience.answers.wrong(case, answer))
        return status == 200

    def _asked(self, case: Case, what: str, *request: Any, **headers: str) -> tuple[int, Any] | bool:
        """A good answer, or whether this was the end of the case."""
        try:
            status, body = self._http.ask(*request, **headers)
        except NoAnswer as error:
            self._patience.ledger.refuse(f"{what}: {error}")
            return False
        if status < 300:
            return status, body
        told = body["error"]
        if told["code"] == "unknown_job":
            return self._patience.lost(case, request[1])
        return self._patience.refused(case, f"{what}: {status}", told["code"], told["message"])


def _waiting_request(case: Case) -> tuple[str, dict[str, Any]]:
    if case.op == "search":
        return "/search", {"queries": case.texts, "k": K}
    return "/embed", {"inputs": case.texts}
