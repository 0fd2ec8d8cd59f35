"""The whole service as an operator runs it: `shoal api` and `shoal worker`, each a process."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from conftest import PATIENCE_S, free_port, wait_until
from process import Process


class Response(NamedTuple):
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    body: Any


class Service:
    """An API and a worker, and a way to send them requests."""

    def __init__(self, api: Process, worker: Process, port: int):
        self.api = api
        self.worker = worker
        self.port = port

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Response:
        """Send a request and return the answer, whose body may be no JSON; a body other than bytes is sent as JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)) as connection:
            connection.request(method, path, data, dict(headers or {}))
            response = connection.getresponse()
            answer = response.read()
            is_json = response.headers.get_content_subtype() in ("json", "problem+json")
            return Response(response.status, dict(response.headers), json.loads(answer) if is_json else answer)

    def is_ready(self) -> bool:
        """Return True if the API says that requests will be answered."""
        try:
            return self.ask("GET", "/ready").status == 200
        except OSError:
            return False

    def listens(self) -> bool:
        """Return True if the API answers at all."""
        try:
            return self.ask("GET", "/health").status == 200
        except OSError:
            return False


@contextmanager
def service(folder: Path, **settings: Any) -> Iterator[Service]:
    """Run both, with their logs in the folder, from when the API answers; the worker may need longer to be ready."""
    port = free_port()
    with (
        Process(folder / "api.log", "api", "--port", port, **settings) as api,
        Process(folder / "worker.log", "worker", **settings) as worker,
    ):
        service = Service(api, worker, port)
        wait_until(service.listens)
        yield service
        assert (api.terminate(), worker.terminate()) == (0, 0), api.output + worker.output
