"""The whole service as an operator runs it: `shoal api` and `shoal worker`, each a process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api_process import ApiProcess
from conftest import free_port, wait_until
from process import Process


class Service(ApiProcess):
    """An API and a worker, and requests to the API."""

    def __init__(self, api: Process, worker: Process, port: int):
        super().__init__(api, port)
        self.api = api
        self.worker = worker

    def is_ready(self) -> bool:
        """Return True if the API says that requests will be answered."""
        try:
            return self.ask("GET", "/ready").status == 200
        except OSError:
            return False


@contextmanager
def service(folder: Path, **settings: Any) -> Iterator[Service]:
    """Run both, with their logs in the folder. The block begins once the API listens; the worker may not be ready."""
    port = free_port()
    with (
        Process(folder / "api.log", "api", "--port", port, **settings) as api,
        Process(folder / "worker.log", "worker", **settings) as worker,
    ):
        service = Service(api, worker, port)
        wait_until(service.listens)
        yield service
        assert (api.terminate(), worker.terminate()) == (0, 0), api.output + worker.output
