"""The whole service as an operator runs it: `shoal api` and `shoal worker`, processes of their own."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from conftest import free_port, wait_until
from process import Process


class Response(NamedTuple):
    """What came back for a request."""

    status: int
    headers: dict[str, str]
    body: Any


class Service:
    """An API and a worker, and a way to ask them."""

    def __init__(self, api: Process, worker: Process, port: int):
        self.api = api
        self.worker = worker
        self.port = port

    def ask(self, method: str, path: str, body: Any = None) -> Response:
        """One request; a body that is no bytes goes as JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, data)
            response = connection.getresponse()
            return Response(response.status, dict(response.headers), json.loads(response.read()))

    def is_ready(self) -> bool:
        """Whether the API says that requests will be answered."""
        try:
            return self.ask("GET", "/ready").status == 200
        except OSError:
            return False

    def listens(self) -> bool:
        """Whether the API answers at all."""
        try:
            return self.ask("GET", "/health").status == 200
        except OSError:
            return False


@contextmanager
def service(folder: Path, **settings: Any) -> Iterator[Service]:
    """Starts both, with their logs in the folder, and returns once the API answers; the worker may need longer."""
    port = free_port()
    with (
        Process(folder / "api.log", "api", "--port", port, **settings) as api,
        Process(folder / "worker.log", "worker", **settings) as worker,
    ):
        service = Service(api, worker, port)
        wait_until(service.listens)
        yield service
        assert (api.terminate(), worker.terminate()) == (0, 0), api.output + worker.output
