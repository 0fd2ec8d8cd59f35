"""The client for threads. All threads share one `AsyncClient`, whose event loop runs in its own thread."""

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from os import PathLike
from typing import Any, Self, TypedDict, TypeVar, Unpack

from shoal.broker.broker import Broker
from shoal.changes.change import MAX_CHANGES
from shoal.client.job_source import File, place_of
from shoal.client.long_job_handles import CHANGE_TIMEOUT_S, IndexHandle, LongHandle
from shoal.client.redis.async_client import AsyncClient, options_from
from shoal.client.redis.loop_thread import LoopThread
from shoal.client.redis.session import EmbedStream
from shoal.client.splitting import MAX_WINDOW, batches
from shoal.client.text_client import TextClient, options_of
from shoal.contract.checks import check_range
from shoal.contract.jobs import Job
from shoal.contract.replies import Reply
from shoal.errors import NotReady
from shoal.long_jobs.long_jobs import LongJobs
from shoal.queue.pool import Pool
from shoal.records.given_document import Given
from shoal.settings import DEFAULTS, Settings

T = TypeVar("T")


class ClientOptions(TypedDict, total=False):
    """The options of a client. An option that is not given has the default of the setting with that name."""

    key_prefix: str
    pool: str
    home: str
    timeout_s: float  #: longest wait for a reply, in seconds; by default `request_timeout_s`
    result_ttl_s: int
    name: str  #: the client's name in the queue, by default random
    max_reply_mb: int
    long_jobs_redis_url: str
    fingerprint: str  #: fingerprint of the model that must make all vectors; by default any


class Client(TextClient):
    """A client of the queue. Thread-safe, and usable in both processes after a fork.

    The client connects on first use. Without a `redis_url`, it uses the Redis of the service that runs from the folder
    `home`. The queue is fair between clients of different `name`; by default the name is random.

    Every method that uses Redis raises Unavailable if Redis does not answer, Overloaded if the lane is full, and
    TooLarge for a job that not even an empty lane accepts. Options are the fields of `shoal.Options` and, in a search,
    of `shoal.SearchOptions`.
    """

    def __init__(self, redis_url: str = DEFAULTS.redis_url, **options: Unpack[ClientOptions]):
        first = AsyncClient(redis_url, **options)
        #: The client's name in the queue.
        self.name = options["name"] = first.name
        #: Longest wait for a reply, in seconds.
        self.timeout_s = first.timeout_s
        #: The pool's keys in Redis.
        self.keys = first.settings.keys
        #: Connections to Redis for code that uses no event loop.
        self.broker = Broker.connect(first.settings.redis_address)
        #: The workers of the pool.
        self.pool = Pool(self.broker, self.keys)
        #: The long jobs of the pool.
        self.long_jobs = LongJobs(first.settings)
        self._new_client = partial(AsyncClient, redis_url, **options)
        # The asynchronous client and the thread of its event loop, by process id, because a fork copies no thread. In a
        # forked child, the parent's entry stays here so that the child does not close the parent's connections.
        self._running: dict[int, tuple[AsyncClient, LoopThread]] = {}

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return a client of the pool in the settings, with the limits and the `request_timeout_s` of the settings."""
        return cls(**options_from(settings))

    def run(self, ask: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """Return the result of a coroutine of the asynchronous client: `client.run(lambda own: own.call(job))`."""
        client, thread = self._started()
        return thread.run(lambda: ask(client))

    def close(self) -> None:
        """Withdraw unanswered jobs and close the client's connections. Waiting threads get Unavailable."""
        if running := self._running.pop(os.getpid(), None):
            running[1].close()
        self.long_jobs.close()
        self.broker.close()

    def embed_stream(
        self, texts: Iterable[str], *, window: int = 64, lane: str = "bulk", **options: Any
    ) -> Iterator[Any]:
        """Yield the vectors of any number of texts in order, with at most `window` unanswered jobs at a time.

        Memory use does not grow with the number of texts. A job that is refused by a full lane is sent again until
        `timeout_s` have passed.
        """
        check_range("window", window, 1, MAX_WINDOW)
        client, thread = self._started()

        async def open_stream() -> EmbedStream:
            return client.open_stream(lane, options)

        stream = thread.run(open_stream)
        source = batches(texts, stream.num_texts)  # this thread reads the texts, not the loop's thread
        try:
            while True:
                while len(stream.sent) < window and (batch := next(source, None)):
                    thread.run(partial(stream.send, batch))
                if not stream.sent:
                    return
                yield from thread.run(stream.receive)
        finally:
            thread.post(stream.close)  # `post` does not wait, as the garbage collector may run this in any thread

    def put(self, job: Job, lane: str = "interactive", idempotency_key: str | None = None) -> str:
        return self.run(lambda own: own.put(job, lane, idempotency_key))

    def bulk(
        self,
        source: File,
        out: str | PathLike[str],
        *,
        text_column: str | None = None,
        id_column: str | None = None,
        format: str = "safetensors",
        idempotency_key: str | None = None,
        **options: Any,
    ) -> LongHandle:
        """Submit a job that embeds a file into the folder `out`, both below the runner's roots, and return at once."""
        options_of(options)
        arguments: dict[str, Any] = {"source": place_of(source), "out": place_of(out), "options": options}
        arguments |= {"text_column": text_column, "id_column": id_column, "format": format}
        job_id = self.long_jobs.submit("embed_file", arguments, idempotency_key=idempotency_key)
        return self.long_job(job_id)

    def index(self, name: str) -> IndexHandle:
        """Return the handle of an index, for changes of its documents and versions."""
        return RedisIndexHandle(self.long_jobs, name, self)

    def long_job(self, job_id: str) -> LongHandle:
        """Return the handle of a long job that was submitted earlier, perhaps by another program."""
        return LongHandle(self.long_jobs, job_id)

    def call(self, job: Job, *, lane: str = "interactive", timeout_s: float | None = None, client: str = "") -> Reply:
        """Wait for the reply to the job and return it. The job counts as a job of `client`, by default this client.

        Jobs that wait at the same time need different ids, because replies are matched by the id. Raises the reply's
        error, TooLarge if all token vectors together are larger than `max_reply_mb`, and Timeout.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        return self.run(lambda own: own.call(job, lane=lane, timeout_s=timeout_s, client=client))

    _call = call

    def _result(self, job_id: str, timeout_s: float | None) -> Reply:
        return self.run(lambda own: own.job(job_id).result(timeout_s))

    def _status(self, job_id: str) -> str:
        return self.run(lambda own: own.job(job_id).status())

    def _cancel(self, job_id: str) -> str:
        return self.run(lambda own: own.job(job_id).cancel())

    def _started(self) -> tuple[AsyncClient, LoopThread]:
        """Return this process's client and thread. The first call, and the first after `close`, starts them."""
        process = os.getpid()
        if running := self._running.get(process):
            return running
        client = self._new_client()
        return self._running.setdefault(process, (client, LoopThread(client.close)))


@dataclass(frozen=True, slots=True)
class RedisIndexHandle(IndexHandle):
    """An index by its name, over Redis."""

    client: Client

    def add(self, documents: Iterable[Given]) -> int:
        found = list(islice(documents, MAX_CHANGES + 1))  # in this thread; `add` refuses more than `MAX_CHANGES`
        return self.client.run(lambda client: client.index(self.name).add(found))

    def delete(self, ids: Iterable[str]) -> int:
        found = list(islice(ids, MAX_CHANGES + 1))
        return self.client.run(lambda client: client.index(self.name).delete(found))

    def _build(self, source: File, options: dict[str, Any]) -> str:
        key = options.pop("idempotency_key", None)
        arguments = {"name": self.name, "source": place_of(source), **options}
        return self.client.long_jobs.submit("build_index", arguments, idempotency_key=key)

    def _manage(self, action: str, version: str | None = None) -> list[dict[str, Any]]:
        jobs = self.client.long_jobs
        if not jobs.num_runners():
            raise NotReady("no runner of long jobs is alive: start one with `shoal serve` or `shoal jobs`")
        job_id = jobs.submit("manage_index", {"name": self.name, "action": action, "version": version})
        versions: list[dict[str, Any]] = LongHandle(jobs, job_id).wait(CHANGE_TIMEOUT_S)["versions"]
        return versions
