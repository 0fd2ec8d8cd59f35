"""The client: what programs, the HTTP front end and the command line use to put jobs in and get replies out."""

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.cache.lookup import CacheLookup
from shoal.errors import (
    Cancelled,
    Expired,
    Internal,
    InvalidRequest,
    InvalidText,
    Overloaded,
    TextTooLong,
    Timeout,
    TooLarge,
)
from shoal.jobs import LANES, Job, Options, new_id
from shoal.keys import Keys
from shoal.queue.dispatcher import Dispatcher, PendingReply
from shoal.queue.flight import Flights
from shoal.queue.lane import LaneLimits
from shoal.queue.queue import Queue
from shoal.replies import Reply
from shoal.settings import EMBEDDED_URL

#: Most texts in one job. Longer lists are split, so that several workers share them and nobody waits long behind them.
TEXTS_PER_JOB = 32

#: How often those who wait long are asked whether they still want their reply.
WANTED_EVERY_S = 1.0

#: Errors that name a text by its number. A job that fails so without the texts that the cache has is run with them.
_OF_A_TEXT = (InvalidText, TextTooLong, TooLarge, Internal)


class Client:
    """A program's end of the queue. Thread-safe; connects on first use.

    `name` says whose jobs these are, and is random by default: the queue is fair to clients of different names.

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
        bounds: LaneLimits | None = None,
        result_ttl_s: int = 3_600,
        name: str = "",
    ):
        self.queue = Queue.connect(redis_url, Keys(key_prefix, pool), bounds, result_ttl_s)
        self.pool = self.queue.pool
        self.name = name or secrets.token_hex(8)
        self.recall = CacheLookup(self.pool)
        self.timeout_s = timeout_s
        self._flights = Flights()
        self._exchange: Dispatcher | None = None
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

    def is_alive(self) -> bool:
        """Whether the client's threads run, if it has any."""
        exchange = self._exchange
        return exchange is None or exchange.is_alive()

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

        Memory stays constant however many texts there are. Where the lane is full, waits until there is room.
        """
        parsed = Options(**options)
        running: deque[tuple[Job, PendingReply]] = deque()
        source, exchange = iter(texts), self._connected()
        try:
            while chunk := list(islice(source, TEXTS_PER_JOB)):
                job = Job("embed", chunk, parsed)
                running.append((job, exchange.call(check_lane(lane), [job], self.name)[0]))
                if len(running) >= window:
                    yield from self._rows(exchange, lane, *running[0])
                    running.popleft()
            while running:
                yield from self._rows(exchange, lane, *running[0])
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
        idempotency_key: str | None = None,
        client: str = "",
        **options: Any,
    ) -> "Handle":
        """Puts a job and returns at once; its result can be fetched by anyone who knows its id, until it expires.

        All texts stay in one job. It has no deadline. With an `idempotency_key`, whoever submits the same again within
        a day gets the job that was put first; `client` is whose it is.
        """
        job = Job(op, _listed(texts), Options(**options), k=k, index=index)
        return Handle(self, self.put(job, lane, client, idempotency_key))

    def put(self, job: Job, lane: str = "interactive", client: str = "", idempotency_key: str | None = None) -> str:
        """What `submit` does, with a job that is made already; returns the job's id, or that of the one put first.

        Raises Overloaded, and InvalidRequest if the key was used for something else.
        """
        if idempotency_key is not None:
            return self.queue.put_once(check_lane(lane), job, check_key(idempotency_key), client, self.name)
        self.queue.put(check_lane(lane), [job], client or self.name)
        return job.id

    def job(self, job_id: str) -> "Handle":
        """The handle of a job that was submitted earlier, perhaps by another program."""
        return Handle(self, job_id)

    def call(
        self,
        job: Job,
        *,
        lane: str = "interactive",
        timeout_s: float | None = None,
        client: str = "",
        is_wanted: Callable[[], bool] | None = None,
    ) -> Reply:
        """Waits for the reply to the job; texts that the cache has are not sent to a worker.

        `client` is whose job it is, where this process asks for several. `is_wanted` is asked every second whether to
        go on. Raises the reply's error, Timeout, or Cancelled once the reply is not wanted any more.
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
                    rest = self._run(replace(job, texts=missing, id=new_id()), lane, until, client, is_wanted)
                    if rest.model == recalled.model:
                        return recalled.reply(rest)
            return self._run(job, lane, until, client, is_wanted)
        except (TimeoutError, Expired) as error:
            raise Timeout(f"no answer within {timeout_s:g} s: {self._why_slow()}") from error

    def _run(
        self, job: Job, lane: str, until: float, client: str, is_wanted: Callable[[], bool] | None = None
    ) -> Reply:
        """The reply of workers to the job, which goes in parts if it is long.

        Raises TimeoutError when it is `until` on the monotonic clock, and Cancelled when it is not wanted any more.
        """
        deadline = time.time() + until - time.monotonic()
        parts = [replace(part, deadline=deadline) for part in job.split(TEXTS_PER_JOB)]
        exchange = self._connected()
        flights = self._flights.board(exchange, lane, parts, client or self.name)
        try:
            return Reply.join([_wait(flight.pending, until, is_wanted) for flight in flights])
        finally:
            self._flights.leave(exchange, flights)

    def _why_slow(self) -> str:
        ready = len(self.pool.ready())
        return (
            "no worker is alive; start one"
            if not ready
            else f"{ready} workers are alive but busy; try again or add some"
        )

    def _rows(self, exchange: Dispatcher, lane: str, job: Job, pending: PendingReply) -> Iterator[NDArray[np.float32]]:
        try:
            reply = Reply.join([self._admitted(exchange, lane, job, pending)])
        except TimeoutError as error:
            raise Timeout(f"no answer within {self.timeout_s:g} s: {self._why_slow()}") from error
        rows: Iterable[NDArray[np.float32]] | None = reply.vectors
        yield from reply.rows_by_text() if job.options.output == "tokens" else () if rows is None else rows

    def _admitted(self, exchange: Dispatcher, lane: str, job: Job, pending: PendingReply) -> Reply:
        """The reply to the job, which is sent again while the lane is full."""
        until = time.monotonic() + self.timeout_s
        while True:
            try:
                return pending.result(self.timeout_s)
            except Overloaded as error:
                if time.monotonic() + error.retry_after_s > until:
                    raise
                time.sleep(error.retry_after_s)
            (pending,) = exchange.call(lane, [job], self.name)

    def _connected(self) -> Dispatcher:
        if self._exchange is None:
            with self._lock:
                if self._exchange is None:
                    self._exchange = Dispatcher(self.queue)
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


def check_key(idempotency_key: str) -> str:
    """`idempotency_key`, if it is one: 1 to 255 characters that can be printed."""
    if not (0 < len(idempotency_key) <= 255 and idempotency_key.isprintable()):
        raise InvalidRequest(
            f"the idempotency key is {idempotency_key!r:.150}: it takes 1 to 255 printable characters, such as a UUID"
        )
    return idempotency_key


def _wait(pending: PendingReply, until: float, is_wanted: Callable[[], bool] | None) -> Reply:
    """The reply, waited for in pieces if somebody is to be asked whether it is still wanted."""
    while True:
        left_s = max(0.0, until - time.monotonic())
        try:
            return pending.result(min(left_s, WANTED_EVERY_S) if is_wanted else left_s)
        except TimeoutError:
            if is_wanted is None or left_s <= WANTED_EVERY_S:
                raise
            if not is_wanted():
                raise Cancelled("whoever asked has gone") from None


def _listed(texts: str | Iterable[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)
