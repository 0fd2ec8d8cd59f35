"""The client for threads: an event loop in a thread of its own runs an `AsyncClient` for all of them."""

import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from os import PathLike
from typing import Any, Self, TypeVar

from shoal.broker.broker import Broker
from shoal.changes.change import MAX_CHANGES
from shoal.client.grouping import batches
from shoal.client.index_handle import CHANGE_TIMEOUT_S, BuildOptions, IndexHandle
from shoal.client.long_handle import LongHandle
from shoal.client.questions import Questions, job_of
from shoal.client.redis.async_client import AsyncClient, options_from
from shoal.client.redis.bulk_job import BulkJob
from shoal.client.redis.embed_stream import EmbedStream
from shoal.client.redis.index_jobs import submit_build, submit_change
from shoal.client.redis.loop_thread import LoopThread
from shoal.client.source_file import File, Item
from shoal.contract.jobs import Job
from shoal.contract.replies import Reply
from shoal.long_jobs.long_jobs import LongJobs
from shoal.queue.pool import Pool
from shoal.records.given_document import Given
from shoal.settings import DEFAULTS, Settings

T = TypeVar("T")


class _Running:
    """The asynchronous client of one process, and the thread whose event loop it belongs to."""

    def __init__(self, client: AsyncClient):
        self.client = client
        self.thread = LoopThread(client.close)


class Client(Questions):
    """A program's end of the queue. Thread-safe, and works on both sides of a fork; connects on first use.

    Unless `redis_url` names a Redis, that is the one of the service that runs from the folder `home`.
    The queue is fair between clients of different `name`; by default the name is random.

    Every method that uses Redis raises Unavailable when Redis does not answer, Overloaded when the lane is full, and
    TooLarge for more than an empty lane takes.
    Options are the fields of `shoal.Options`: normalize, pooling, output, dimensions, prompt_name, truncate,
    truncation_side, chunk_tokens and chunk_overlap; and the fields of `shoal.SearchOptions` in a search.
    """

    def __init__(
        self,
        redis_url: str = DEFAULTS.redis_url,
        *,
        key_prefix: str = DEFAULTS.key_prefix,
        pool: str = DEFAULTS.pool,
        home: str = DEFAULTS.home,
        timeout_s: float = DEFAULTS.request_timeout_s,
        result_ttl_s: int = DEFAULTS.result_ttl_s,
        name: str = "",
        max_reply_mb: int = DEFAULTS.max_reply_mb,
    ):
        #: The name under which the queue knows the client.
        self.name = name or secrets.token_hex(8)
        #: The seconds for which it waits for a reply.
        self.timeout_s = timeout_s
        settings = Settings(redis_url=redis_url, key_prefix=key_prefix, pool=pool, home=home)
        #: The keys of the pool.
        self.keys = settings.keys
        #: The way to Redis of what knows no event loop.
        self.broker = Broker.connect(settings.redis_address)
        #: The workers of the pool.
        self.pool = Pool(self.broker, settings.keys)
        #: The long jobs of the pool.
        self.long_jobs = LongJobs(settings, broker=self.broker)
        self._new_client = partial(
            AsyncClient,
            redis_url,
            key_prefix=key_prefix,
            pool=pool,
            home=home,
            timeout_s=timeout_s,
            result_ttl_s=result_ttl_s,
            name=self.name,
            max_reply_mb=max_reply_mb,
        )
        # By the id of the process: a fork copies no thread. The parent's stay here, so that nothing of them is closed.
        self._running: dict[int, _Running] = {}

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return a client of the pool that the settings name, with their limits and their `request_timeout_s`."""
        return cls(**options_from(settings))

    def run(self, ask: Callable[[AsyncClient], Awaitable[T]], is_wanted: Callable[[], bool] | None = None) -> T:
        """Return what the asynchronous client answers: `client.run(lambda client: client.queue.loads())`.

        It is cancelled if the thread gives up, as by Ctrl-C; with `is_wanted`, which is called about once a second,
        also once that returns False.
        """
        running = self._started()
        return running.thread.run(lambda: ask(running.client), is_wanted)

    def close(self) -> None:
        """Stop the client's thread and close its connections; threads that still wait get Unavailable.

        Jobs that they wait for are withdrawn first.
        """
        if running := self._running.pop(os.getpid(), None):
            running.thread.close()
        self.broker.close()

    def embed_stream(
        self, texts: Iterable[str], *, window: int = 64, lane: str = "bulk", **options: Any
    ) -> Iterator[Any]:
        """Yield the vectors of any number of texts in order, with at most `window` jobs unanswered at a time.

        Memory stays constant however many texts there are. While the lane is full, a job is sent again until it has
        been refused for `timeout_s`.
        """
        running = self._started()

        async def open_stream() -> EmbedStream:
            return running.client.open_stream(window, lane, options)

        run = running.thread.run
        stream = run(open_stream)
        source = batches(texts, stream.num_texts)  # which this thread iterates
        try:
            while True:
                while stream.has_room and (batch := next(source, None)):
                    run(partial(stream.send, batch))
                if stream.is_empty:
                    return
                yield from run(stream.receive)
        finally:
            running.thread.post(stream.close)  # the garbage collector may come here in any thread

    def submit(
        self,
        op: str,
        texts: str | Iterable[str],
        *,
        lane: str = "interactive",
        k: int = 5,
        index: str = "default",
        query: str | None = None,
        raw_scores: bool = False,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        client: str = "",
        **options: Any,
    ) -> "Handle":
        """Put a job and return at once; any program that knows its id can fetch the result, until it expires.

        All texts stay in one job, which is not computed if it waits for over `timeout_s`. Submitting the same again
        with the same `idempotency_key` within a day returns the job that was put first. `client` is the client that the
        job counts for, by default this one.
        """
        job = job_of(op, texts, options, k=k, index=index, query=query, raw_scores=raw_scores, timeout_s=timeout_s)
        return Handle(self, self.put(job, lane, client, idempotency_key))

    def put(self, job: Job, lane: str = "interactive", client: str = "", idempotency_key: str | None = None) -> str:
        """Put a job as `submit` does; return its id, or the id of the job that was put first with the key.

        Raises Overloaded, TooLarge for too many hits or token vectors, and InvalidRequest if the key was used for
        a job that asked something else, or if the job has a deadline that is too far away.
        """
        return self.run(lambda own: own.put(job, lane, client, idempotency_key))

    def job(self, job_id: str) -> "Handle":
        """Return the handle of a job that was submitted earlier, perhaps by another program."""
        return Handle(self, job_id)

    def bulk(
        self,
        source: File | Iterable[Item],
        out: str | PathLike[str],
        *,
        text_column: str | None = None,
        id_column: str | None = None,
        format: str = "safetensors",
        webhook: str | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> LongHandle:
        """Submit the embedding of a file, or of a URL, into the folder `out`, and return at once.

        The runner reads and writes below its roots. Texts, or documents as dicts, are first written to a file beside
        `out`, called `{out}.jsonl`, which has to be a folder that the program and the runner share.
        """
        columns = {"text_column": text_column, "id_column": id_column}
        once = {"webhook": webhook, "idempotency_key": idempotency_key}
        job = BulkJob(self.long_jobs, out, format=format, **columns, **once, **options)
        return self.long_job(job.submit(source))

    def index(self, name: str) -> IndexHandle:
        """Return the handle of an index, by which its documents and its versions are changed."""
        return IndexHandle(RedisIndex(self, name))

    def long_job(self, job_id: str) -> LongHandle:
        """Return the handle of a long job that was submitted earlier, perhaps by another program."""
        return LongHandle(self.long_jobs, job_id)

    def call(
        self,
        job: Job,
        *,
        lane: str = "interactive",
        timeout_s: float | None = None,
        client: str = "",
        is_wanted: Callable[[], bool] | None = None,
    ) -> Reply:
        """Return the reply to the job, waiting for it; texts that the cache has are not sent to a worker.

        `client` is the client that the job counts for, by default this one. `is_wanted` is called about once a second.
        Threads that call at the same time need jobs with different ids: a reply is told from others by the id.
        Raises the reply's error, TooLarge for token vectors of more than `max_reply_mb` altogether, Timeout, or
        Cancelled once `is_wanted` returns False.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        return self.run(lambda own: own.call(job, lane=lane, timeout_s=timeout_s, client=client), is_wanted)

    def _call(self, job: Job) -> Reply:
        return self.call(job)

    def _started(self) -> _Running:
        """Return this process's client and thread; start them anew after `close`."""
        process = os.getpid()
        return self._running.get(process) or self._running.setdefault(process, _Running(self._new_client()))


@dataclass(frozen=True, slots=True)
class Handle:
    """A submitted job."""

    client: Client
    id: str

    def result(self, timeout_s: float | None = None) -> Reply:
        """Return the job's reply, waiting for it.

        Raises the reply's error, Timeout, or UnknownJob once the result has expired.
        """
        return self.client.run(lambda client: client.job(self.id).result(timeout_s))

    def status(self) -> str:
        """Return one of queued, running, done, failed, cancelled and expired."""
        return self.client.run(lambda client: client.job(self.id).status())

    def cancel(self) -> str:
        """Cancel the job unless it is answered; return its status after that."""
        return self.client.run(lambda client: client.job(self.id).cancel())


@dataclass(frozen=True, slots=True)
class RedisIndex:
    """The calls for an index by its name."""

    client: Client
    name: str

    @property
    def jobs(self) -> LongJobs:
        """The calls for its long jobs."""
        return self.client.long_jobs

    def add(self, documents: Iterable[Given]) -> int:
        """Add documents; return their number."""
        found = list(islice(documents, MAX_CHANGES + 1))  # by this thread; one more than is taken is refused
        return self.client.run(lambda client: client.index(self.name).add(found))

    def delete(self, ids: Iterable[str]) -> int:
        """Delete the documents with these ids; return the number of ids."""
        found = list(islice(ids, MAX_CHANGES + 1))
        return self.client.run(lambda client: client.index(self.name).delete(found))

    def build(self, source: File | Iterable[Item], options: BuildOptions) -> str:
        """Submit a build from a file that the runner has; return the id of the job."""
        return submit_build(self.jobs, self.name, source, options)

    def manage(self, action: str, version: str | None = None) -> list[dict[str, Any]]:
        """Let a runner do the action; return the versions after it."""
        job_id = submit_change(self.jobs, self.name, action, version)
        versions: list[dict[str, Any]] = LongHandle(self.jobs, job_id).wait(CHANGE_TIMEOUT_S)["versions"]
        return versions
