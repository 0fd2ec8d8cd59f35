"""The whole service as an operator runs it: a process of `shoal api`, and a process of `shoal worker`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api_process import ApiProcess, running_api
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
    """Run both processes, with logs in the folder. The block begins once the API listens, perhaps before the worker."""
    with (
        Process(folder / "worker.log", "worker", **settings) as worker,
        running_api(folder / "api.log", **settings) as api,
    ):
        yield Service(api.process, worker, api.port)
        assert (api.process.terminate(), worker.terminate()) == (0, 0), api.process.output + worker.output
