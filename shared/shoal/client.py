"""The client: what programs, the HTTP front end and the command line use to put jobs in and get replies out."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.errors import Expired, Internal, InvalidRequest, InvalidText, TextTooLong, Timeout, TooLarge
from shoal.exchange import Exchange, Pending
from shoal.flight import Flights
from shoal.jobs import LANES, Job, Options, new_id
from shoal.keys import Keys
from shoal.pool import Pool
from shoal.queue import Queue
from shoal.recall import Recall
from shoal.replies import Reply
from shoal.settings import EMBEDDED_URL

#: Most texts in one job. Longer lists are split, so that several workers share them and nobody waits long behind them.
TEXTS_PER_JOB = 32

#: Errors that name a text by its number. A job that fails so without the texts that the cache has is run with them.
_OF_A_TEXT = (InvalidText, TextTooLong, TooLarge, Internal)


class Client:
    """A program's end of the queue. Thread-safe; connects on first use.

    Every method that talks to Redis raises Unavailable when it does not answer, and Overloaded when the lane is full.
    Options are the fields of `shoal.Options`: normalize, pooling, output, dimensions, prompt_name, truncate and
    truncation_side.
    """

    def __init__(
        self,
        redis_url: str = EMBEDDED_URL,
        *,
        key_prefix: str = "shoal",
        pool: str = "default",
        timeout_s: float = 30.0,
        max_backlog: int = 10_000,
        result_ttl_s: int = 3_600,
    ):
        keys = Keys(key_prefix, pool)
        self.queue = Queue.connect(redis_url, keys, max_backlog=max_backlog, result_ttl_s=result_ttl_s)
        self.pool = Pool(self.queue.redis, keys)
        self.recall = Recall(self.pool)
        self.timeout_s = timeout_s
        self._flights = Flights()
        self._exchange: Exchange | None = None
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self) -> None:
        """Starts the client's threads now, before the first call needs them."""
        self._connected()

    def close(self) -> None:
        """Stops the client's threads and drops its connections."""
        with self._lock:
            if self._exchange is not None:
                self._exchange.close()
                self._exchange = None
        self.queue.close()

    def embed(self, texts: str | Iterable[str], **options: Any) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """Vectors of the texts: float32 `[texts, dimension]`, or `[dimension]` for a single str.

        With `output="tokens"`, a list with one `[tokens, dimension]` array a text.
        """
        job = Job("embed", _listed(texts), Options(**options))
        reply = self.call(job)
        if job.options.output == "tokens":
            rows = reply.rows_by_text()
            return rows[0] if isinstance(texts, str) else rows
        assert reply.vectors is not None
        return reply.vectors[0] if isinstance(texts, str) else reply.vectors

    def search(self, queries: str | Iterable[str], k: int = 5, index: str = "default", **options: Any) -> list[Any]:
        """The `k` nearest documents of each query, best first: one list of hits a query, or one list for a single str.

        A hit is a dict with `id`, `score`, `text` and the document's other fields.
        """
        hits = self.call(Job("search", _listed(queries), Options(**options), k=k, index=index)).hits or []
        return hits[0] if isinstance(queries, str) else hits

    def embed_stream(
        self, texts: Iterable[str], *, window: int = 64, lane: str = "bulk", **options: Any
    ) -> Iterator[NDArray[np.float32]]:
        """Vectors of any number of texts, one at a time and in order, with at most `window` jobs on their way.

        Memory stays constant however many texts there are.
        """
        parsed = Options(**options)
        running: deque[tuple[Job, Pending]] = deque()
        source, exchange = iter(texts), self._connected()
        try:
            while chunk := list(islice(source, TEXTS_PER_JOB)):
                job = Job("embed", chunk, parsed)
                running.append((job, exchange.call(check_lane(lane), [job])[0]))
                if len(running) >= window:
                    yield from self._rows(*running[0])
                    running.popleft()
            while running:
                yield from self._rows(*running[0])
                running.popleft()
        finally:
            exchange.forget([job for job, _ in running])

    def submit(
        self,
        op: str,
        texts: str | Iterable[str],
        *,
        lane: str = "interactive",
        k: int = 5,
        index: str = "default",
        **options: Any,
    ) -> "Handle":
        """Puts a job and returns at once; its result can be fetched by anyone who knows its id, until it expires.

        All texts stay in one job. It has no deadline.
        """
        job = Job(op, _listed(texts), Options(**options), k=k, index=index)
        self.queue.put(check_lane(lane), [job])
        return Handle(self, job.id)

    def job(self, job_id: str) -> "Handle":
        """The handle of a job that was submitted earlier, perhaps by another program."""
        return Handle(self, job_id)

    def call(self, job: Job, *, lane: str = "interactive", timeout_s: float | None = None) -> Reply:
        """Waits for the reply to the job; texts that the cache has are not sent to a worker.

        Raises the reply's error, or Timeout.
        """
        check_lane(lane)
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        until = time.monotonic() + timeout_s
        recalled = self.recall.find(job)
        missing = recalled.missing
        if not missing:
            return recalled.reply()
        try:
            if len(missing) < len(job.texts):
                with suppress(*_OF_A_TEXT):
                    rest = self._run(replace(job, texts=missing, id=new_id()), lane, until)
                    if rest.model == recalled.model:
                        return recalled.reply(rest)
            return self._run(job, lane, until)
        except (TimeoutError, Expired) as error:
            raise Timeout(f"no answer within {timeout_s:g} s: {self._why_slow()}") from error

    def _run(self, job: Job, lane: str, until: float) -> Reply:
        """The reply of workers to the job, which goes in parts if it is long.

        Raises TimeoutError when it is `until` on the monotonic clock.
        """
        deadline = time.time() + until - time.monotonic()
        parts = [replace(part, deadline=deadline) for part in job.split(TEXTS_PER_JOB)]
        exchange = self._connected()
        flights = self._flights.board(exchange, lane, parts)
        try:
            return Reply.join([flight.pending.result(max(0.0, until - time.monotonic())) for flight in flights])
        finally:
            self._flights.leave(exchange, flights)

    def _why_slow(self) -> str:
        ready = len(self.pool.ready())
        return (
            "no worker is alive; start one"
            if not ready
            else f"{ready} workers are alive but busy; try again or add some"
        )

    def _rows(self, job: Job, pending: Pending) -> Iterator[NDArray[np.float32]]:
        try:
            reply = Reply.join([pending.result(self.timeout_s)])
        except TimeoutError as error:
            raise Timeout(f"no answer within {self.timeout_s:g} s: {self._why_slow()}") from error
        rows: Iterable[NDArray[np.float32]] | None = reply.vectors
        yield from reply.rows_by_text() if job.options.output == "tokens" else () if rows is None else rows

    def _connected(self) -> Exchange:
        if self._exchange is None:
            with self._lock:
                if self._exchange is None:
                    self._exchange = Exchange(self.queue)
        return self._exchange


@dataclass(frozen=True, slots=True)
class Handle:
    """A submitted job."""

    client: Client
    id: str

    def result(self, timeout_s: float | None = None) -> Reply:
        """The job's reply, waited for.

        Raises the reply's error, Timeout, or UnknownJob once the result has expired.
        """
        timeout_s = self.client.timeout_s if timeout_s is None else timeout_s
        reply = self.client.queue.wait_result(self.id, timeout_s)
        if reply is None:
            raise Timeout(f"job {self.id} has no answer after {timeout_s:g} s: it keeps its place, ask again")
        return Reply.join([reply])

    def status(self) -> str:
        """One of queued, running, done, failed, cancelled and expired."""
        return self.client.queue.status(self.id)[0]

    def cancel(self) -> str:
        """Takes the job back if no worker has started it; returns the status it then has."""
        return self.client.queue.cancel(self.id)


def check_lane(lane: str) -> str:
    """`lane`, if there is one of that name."""
    if lane not in LANES:
        raise InvalidRequest(f"lane is {lane!r}: it takes one of {', '.join(LANES)}")
    return lane


def _listed(texts: str | Iterable[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)
