"""The client: programs, the HTTP front end and the command line use it to put jobs in and get replies out."""

import time
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from threading import Lock
from typing import Any

from shoal.blocking import iterate_now, run_now
from shoal.cache.lookup import CacheLookup, LookupResult
from shoal.client.index_handle import IndexHandle
from shoal.client.long_handle import LongHandle
from shoal.client.questions import BlockingQuestions, job_of
from shoal.client.redis.calls import Calls
from shoal.client.redis.handle import Handle
from shoal.client.redis.index import RedisIndex
from shoal.client.redis.long_jobs import RedisLongJobs
from shoal.client.source_file import File, Item
from shoal.jobs import Job
from shoal.long_jobs.long_jobs import LongJobs
from shoal.queue.dispatcher import Dispatcher, PendingReply
from shoal.queue.producer import AsyncProducer, Producer
from shoal.replies import Reply
from shoal.settings import DEFAULTS, Settings


class Client(BlockingQuestions, Calls[PendingReply]):
    """A program's end of the queue. Thread-safe; connects on first use.

    Unless `redis_url` names a Redis, that is the one of the service that runs from the folder `home`.
    The queue is fair between clients of different `name`; by default the name is random.

    Every method that uses Redis raises Unavailable when Redis does not answer, Overloaded when the lane is full, and
    TooLarge for more than an empty lane takes.
    Options are the fields of `shoal.Options`: normalize, pooling, output, dimensions, prompt_name, truncate,
    truncation_side, chunk_tokens and chunk_overlap; and those of `shoal.SearchOptions` in a search.
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
        super().__init__(name, timeout_s, max_reply_mb)
        settings = Settings(redis_url=redis_url, key_prefix=key_prefix, pool=pool, home=home)
        self.queue = Producer.connect(settings.redis_address, settings.keys, result_ttl_s)
        self.pool = self.queue.pool
        self.cache_lookup = CacheLookup(self.pool)
        #: The long jobs of the pool.
        self.long_jobs = LongJobs(settings, broker=self.queue.broker)
        self._jobs = RedisLongJobs(self.long_jobs)
        self._dispatcher: Dispatcher | None = None
        self._lock = Lock()

    def connect(self) -> Dispatcher:
        """Start the client's threads unless they run, and return the dispatcher that they serve."""
        if self._dispatcher is None:
            with self._lock:
                if self._dispatcher is None:
                    self._dispatcher = Dispatcher(self.queue)
        return self._dispatcher

    def is_alive(self) -> bool:
        """Return False if a thread of the client has died."""
        dispatcher = self._dispatcher
        return dispatcher is None or dispatcher.is_alive()

    def close(self) -> None:
        """Stop the client's threads and close its connections; threads that still wait get Unavailable.

        Jobs that they wait for are withdrawn first.
        """
        with self._lock:
            if self._dispatcher is not None:
                self._dispatcher.close()
                self._dispatcher = None
        self.queue.close()

    def embed_stream(
        self, texts: Iterable[str], *, window: int = 64, lane: str = "bulk", **options: Any
    ) -> Iterator[Any]:
        """Yield the vectors of any number of texts in order, with at most `window` jobs unanswered at a time.

        Memory stays constant however many texts there are. While the lane is full, a job is sent again until it has
        been refused for `timeout_s`.
        """
        yield from iterate_now(self._stream(texts, window, lane, options))

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
    ) -> Handle:
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
        return run_now(self._put(job, lane, client, idempotency_key))

    def job(self, job_id: str) -> Handle:
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
        job = self._jobs.embed_file(source, out, format=format, **columns, **once, **options)
        return LongHandle(self._jobs, run_now(job))

    def index(self, name: str) -> IndexHandle:
        """Return the handle of an index, by which its documents and its versions are changed."""
        return IndexHandle(RedisIndex(name, self._jobs, self))

    def long_job(self, job_id: str) -> LongHandle:
        """Return the handle of a long job that was submitted earlier, perhaps by another program."""
        return LongHandle(self._jobs, job_id)

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
        return run_now(self._call(job, lane, timeout_s, client, is_wanted))

    # The I/O of threads

    def _sender(self) -> Dispatcher:
        return self.connect()

    async def _result(self, pending: PendingReply, timeout_s: float) -> Reply:
        return pending.result(timeout_s)

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def _now(self) -> float:
        self.queue.clock.refresh()
        return self.queue.clock.now()

    async def _find(self, job: Job) -> LookupResult:
        return self.cache_lookup.find(job)

    def _producer(self) -> AsyncProducer:
        return self.queue.asynchronous
