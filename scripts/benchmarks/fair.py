"""What a person waits for while the bulk lane is never empty, and what that costs the bulk work."""

import json
import threading
import time
from collections.abc import Sequence
from functools import partial
from http.client import HTTPConnection
from itertools import count
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from benchmarks.embed import sent_headlines
from benchmarks.plan import Plan
from benchmarks.server import Server, shoal
from shoal.bench import wrk
from shoal.bench.trial import STRIDE, Figures, Row, Trial, figures_of
from shoal.errors import NotReady

#: Jobs that the bulk client has on their way: two for the worker's step, two that wait. With more, texts would come
#: in bursts longer than a run.
WINDOW = 4

#: Texts of a bulk job: as many as `shoal.Client` sends in one.
TEXTS_PER_JOB = 32

PERSON = "1 connection x 1 headline"


def run(plan: Plan) -> list[Row]:
    """Interactive work alone, bulk work alone, and both, in turns on one server."""
    with shoal() as server:
        return plan.interleave("fair", trials(server, plan))


def trials(server: Server, plan: Plan) -> list[Trial]:
    """Return the trials of one server."""
    alone = [[text] for text in sent_headlines(plan)]
    load = server.embed_load(1, alone)
    found = [server.embed_trial(f"{PERSON}, nothing else", 1, alone)]
    for kind, texts in {"headlines": sent_headlines(plan)[::-1], "abstracts": plan.texts.abstracts}.items():
        found += [
            Trial(f"bulk {kind}, nothing else", server.name, partial(_alone, server, texts)),
            Trial(f"{PERSON}, beside bulk {kind}", server.name, partial(_beside, server, texts, load)),
        ]
    return found


class Bulk:
    """A client that submits bulk jobs over HTTP and fetches their results, for as long as its `with` lasts."""

    def __init__(self, url: str, texts: Sequence[str]):
        self._address = urlsplit(url).netloc
        self._jobs = [texts[n : n + TEXTS_PER_JOB] for n in range(0, len(texts) - TEXTS_PER_JOB + 1, TEXTS_PER_JOB)]
        self._numbers = count()
        self._num_done = 0
        self._failure = ""
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(WINDOW)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        while not self._num_done and any(thread.is_alive() for thread in self._threads):
            time.sleep(0.01)
        self._started_s, self._num_before = time.monotonic(), self._num_done
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def texts_per_s(self) -> float:
        """Return the texts embedded in a second so far. Raises NotReady if a request failed."""
        if self._failure:
            raise NotReady(f"a bulk request failed: {self._failure}")
        return (self._num_done - self._num_before) / (time.monotonic() - self._started_s)

    def _run(self) -> None:
        connection = HTTPConnection(self._address, timeout=120)
        try:
            while not self._stopping.is_set():
                texts = self._jobs[next(self._numbers) % len(self._jobs)]
                _, body = _ask(connection, "POST", "/v1/jobs", {"op": "embed", "lane": "bulk", "inputs": texts})
                path = f"/v1/jobs/{json.loads(body)['id']}/result?wait=30"
                while _ask(connection, "GET", path)[0] != 200:
                    pass  # 202: it waits in its lane
                self._num_done += len(texts)
        except (OSError, NotReady) as error:
            self._failure = str(error)
        connection.close()


def _ask(connection: HTTPConnection, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    found = response.read()
    if response.status >= 300:
        raise NotReady(f"{method} {path}: {response.status} {found[:200].decode()}")
    return response.status, found


def _alone(server: Server, texts: Sequence[str], seconds: int, _: int) -> Figures:
    with Bulk(server.url, texts) as bulk:
        time.sleep(seconds)
        rate = bulk.texts_per_s()
    server.processes.wait_until_idle()
    return {"bulk texts/s": rate}


def _beside(server: Server, texts: Sequence[str], load: wrk.Load, seconds: int, number: int) -> Figures:
    with Bulk(server.url, texts) as bulk:
        figures = figures_of(wrk.run(load, seconds, number * STRIDE), 1)
        rate = bulk.texts_per_s()
    server.processes.wait_until_idle()
    return {**figures, "bulk texts/s": rate}
