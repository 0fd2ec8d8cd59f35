"""Clients that note the outcome of every request. Tests with them stop and restart a server under load."""

import json
import select
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from random import Random
from types import TracebackType
from typing import Self

from conftest import PATIENCE_S


class Callers:
    """Threads that send one request after the other, until they are stopped or the server refuses connections.

    `outcomes` counts the status codes of answers, and, as `lost`, requests that were sent and never answered. Without
    `keeps`, a thread opens a connection for each request. Threads pause for up to `think_s` between requests.
    """

    def __init__(self, port: int, num_callers: int, *, keeps: bool = True, think_s: float = 0.0):
        self.port = port
        self.outcomes: Counter[str] = Counter()
        self.losses: list[str] = []
        self._keeps = keeps
        self._think_s = think_s
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._ask_on, args=(n,)) for n in range(num_callers)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self.join()

    def join(self) -> None:
        """Wait until all threads have ended."""
        for thread in self._threads:
            thread.join()

    @property
    def num_answered(self) -> int:
        """The number of answers so far."""
        return self.outcomes["200"]

    def _ask_on(self, n: int) -> None:
        random, num_asked = Random(n), 0
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        while not self._stopped.is_set():
            if connection.sock and select.select([connection.sock], [], [], 0)[0]:
                connection.close()  # the server has closed the idle connection
            if not connection.sock:
                try:
                    connection.connect()
                except ConnectionRefusedError:
                    return
            num_asked += 1
            self._ask(connection, f"caller {n} asks {num_asked}")
            if not self._keeps:
                connection.close()
            self._stopped.wait(random.random() * self._think_s)
        connection.close()

    def _ask(self, connection: HTTPConnection, text: str) -> None:
        asked_at = time.monotonic()
        try:
            connection.request("POST", "/embed", json.dumps({"inputs": text}))
            response = connection.getresponse()
            response.read()
            self.outcomes[str(response.status)] += 1
        except (OSError, HTTPException) as error:
            self.outcomes["lost"] += 1
            self.losses.append(f"{type(error).__name__} after {time.monotonic() - asked_at:.4f} s")
            connection.close()
