"""The client: programs, the HTTP front end and the command line use it to put jobs in and get replies out."""

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from threading import Lock
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.cache.lookup import CacheLookup
from shoal.client.handle import Handle
from shoal.client.parts import TEXTS_PER_JOB, TEXTS_PER_TOKENS_JOB, as_list, check_key, check_lane, texts_per_job
from shoal.errors import Cancelled, Expired, Internal, InvalidText, Overloaded, TextTooLong, Timeout, TooLarge
from shoal.jobs import Job, Options, check_deadline, new_id
from shoal.keys import Keys
from shoal.queue.dispatcher import Dispatcher, PendingReply
from shoal.queue.lane import LaneLimits
from shoal.queue.producer import Producer
from shoal.replies import Reply
from shoal.settings import DEFAULTS, Settings
from shoal.size_limit import MAX_JOB_HITS, check_hits, check_token_vectors

#: Parts of a request for token vectors that are under way at a time: the others wait, so replies take little memory.
MAX_TOKENS_PARTS = 4

#: Seconds between two calls of `is_wanted` while a reply is waited for.
WANTED_EVERY_S = 1.0

#: Errors that may name a text by its number in the job. A job of which the cache has some texts is then sent whole.
_ERRORS_OF_A_TEXT = (InvalidText, TextTooLong, TooLarge, Internal)


class Client:
    """A program's end of the queue. Thread-safe; connects on first use.

    The queue is fair between clients of different `name`; by default the name is random.

    Every method that uses Redis raises Unavailable when Redis does not answer, Overloaded when the lane is full, and
    TooLarge for more than an empty lane takes.
    Options are the fields of `shoal.Options`: normalize, pooling, output, dimensions, prompt_name, truncate and
    truncation_side.
    """

    def __init__(
        self,
        redis_url: str = DEFAULTS.redis_url,
        *,
        key_prefix: str = DEFAULTS.key_prefix,
        pool: str = DEFAULTS.pool,
        timeout_s: float = DEFAULTS.request_timeout_s,
        limits: LaneLimits | None = None,
        result_ttl_s: int = DEFAULTS.result_ttl_s,
        name: str = "",
        max_reply_mb: int = DEFAULTS.max_reply_mb,
    ):
        self.queue = Producer.connect(redis_url, Keys(key_prefix, pool), limits, result_ttl_s)
        self.pool = self.queue.pool
        self.cache_lookup = CacheLookup(self.pool)
        self.name = name or secrets.token_hex(8)
        self.timeout_s = timeout_s
        self.max_reply_bytes = max_reply_mb * 2**20
        self._dispatcher: Dispatcher | None = None
        self._lock = Lock()

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return a client of the pool that the settings name, with their limits and their `request_timeout_s`."""
        return cls(
            settings.redis_url,
            key_prefix=settings.key_prefix,
            pool=settings.pool,
            timeout_s=settings.request_timeout_s,
            limits=LaneLimits.from_settings(settings),
            result_ttl_s=settings.result_ttl_s,
            max_reply_mb=settings.max_reply_mb,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
        """Stop the client's threads and close its connections."""
        with self._lock:
            if self._dispatcher is not None:
                self._dispatcher.close()
                self._dispatcher = None
        self.queue.close()

    def embed(self, texts: str | Iterable[str], **options: Any) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """Return the vectors of the texts: float32 `[texts, dimension]`, or `[dimension]` for a single str.

        With `output="tokens"`, return a list with one `[tokens, dimension]` array for each text.
        """
        job = Job("embed", as_list(texts), Options(**options))
        vectors = _vectors(self.call(job), job.options)
        return vectors[0] if isinstance(texts, str) else vectors

    def search(self, queries: str | Iterable[str], k: int = 5, index: str = "default", **options: Any) -> list[Any]:
        """Return the `k` nearest documents of each query, best first: a list of hits for each, or one for a single str.

        A hit is a dict with `id`, `score`, `text` and the document's other fields.
        """
        hits = self.call(Job("search", as_list(queries), Options(**options), k=k, index=index)).hits or []
        return hits[0] if isinstance(queries, str) else hits

    def embed_stream(
        self, texts: Iterable[str], *, window: int = 64, lane: str = "bulk", **options: Any
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of any number of texts in order, with at most `window` jobs unanswered at a time.

        Memory stays constant however many texts there are. While the lane is full, a job is sent again until it has
        been refused for `timeout_s`.
        """
        check_lane(lane)
        parsed, source, dispatcher = Options(**options), iter(texts), self.connect()
        num_texts = TEXTS_PER_TOKENS_JOB if parsed.output == "tokens" else TEXTS_PER_JOB
        chunks = iter(lambda: list(islice(source, num_texts)), [])
        sent: deque[tuple[Job, PendingReply]] = deque()
        try:
            while True:
                while len(sent) < window and (chunk := next(chunks, None)):
                    job = Job("embed", chunk, parsed)
                    sent.append((job, dispatcher.call(lane, [job], self.name)[0]))
                if not sent:
                    return
                yield from _vectors(self._wait_until_admitted(dispatcher, lane, *sent[0]), parsed)
                sent.popleft()
        finally:
            dispatcher.forget([job for job, _ in sent])

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
    ) -> Handle:
        """Put a job and return at once; any program that knows its id can fetch the result, until it expires.

        All texts stay in one job, which has no deadline. Submitting the same again with the same `idempotency_key`
        within a day returns the job that was put first. `client` is the client that the job counts for, by default this
        one.
        """
        job = Job(op, as_list(texts), Options(**options), k=k, index=index)
        return Handle(self, self.put(job, lane, client, idempotency_key))

    def put(self, job: Job, lane: str = "interactive", client: str = "", idempotency_key: str | None = None) -> str:
        """Put a job as `submit` does; return its id, or the id of the job that was put first with the key.

        Raises Overloaded, TooLarge for too many hits or token vectors, and InvalidRequest if the key was used for
        a job that asked something else, or if the job has a deadline that is too far away.
        """
        check_hits(job, MAX_JOB_HITS, "job")
        self._check_token_vectors(job)
        if job.deadline is not None:
            self.queue.clock.refresh()
            check_deadline(job.deadline, self.queue.clock.now())
        if idempotency_key is not None:
            name = check_key(idempotency_key)
            return self.queue.put_once(check_lane(lane), job, name, owner=client, client=client or self.name)
        self.queue.put(check_lane(lane), [job], client or self.name)
        return job.id

    def job(self, job_id: str) -> Handle:
        """Return the handle of a job that was submitted earlier, perhaps by another program."""
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
        """Return the reply to the job, waiting for it; texts that the cache has are not sent to a worker.

        `client` is the client that the job counts for, by default this one. `is_wanted` is called about once a second.
        Threads that call at the same time need jobs with different ids: a reply is told from others by the id.
        Raises the reply's error, TooLarge for token vectors of more than `max_reply_mb` altogether, Timeout, or
        Cancelled once `is_wanted` returns False.
        """
        check_lane(lane)
        self._check_token_vectors(job)
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        until = time.monotonic() + timeout_s
        cached = self.cache_lookup.find(job)
        if not cached.missing:
            return cached.reply()
        run = partial(self._run, lane=lane, client=client or self.name, until=until, is_wanted=is_wanted)
        try:
            if len(cached.missing) < len(job.texts):
                with suppress(*_ERRORS_OF_A_TEXT):
                    rest = run(replace(job, texts=cached.missing, id=new_id()))
                    if rest.model == cached.model:
                        return cached.reply(rest)
            return run(job)
        except (TimeoutError, Expired) as error:
            raise self._timeout(timeout_s) from error

    def _run(self, job: Job, lane: str, client: str, until: float, is_wanted: Callable[[], bool] | None) -> Reply:
        """Return the workers' reply to the job, which is sent in parts if it is long; token vectors a few at a time.

        Raises TimeoutError at `until` on the monotonic clock, and Cancelled once the reply is not wanted any more.
        """
        self.queue.clock.refresh()
        deadline = self.queue.clock.now() + until - time.monotonic()
        parts = [replace(part, deadline=deadline) for part in job.split(texts_per_job(job))]
        send = partial(self._send, lane=lane, client=client, until=until, is_wanted=is_wanted)
        if job.options.output != "tokens":
            return Reply.join(send(parts))
        replies: list[Reply] = []
        for n in range(0, len(parts), MAX_TOKENS_PARTS):
            replies += [Reply.join([reply]) for reply in send(parts[n : n + MAX_TOKENS_PARTS])]
            num_bytes = sum(reply.vectors.nbytes for reply in replies if reply.vectors is not None)
            if num_bytes > self.max_reply_bytes:
                raise TooLarge(
                    f"the token vectors of {len(replies)} of {len(parts)} parts have {num_bytes:,} bytes, and a reply "
                    f"may have {self.max_reply_bytes:,}: split the list"
                )
        return Reply.join(replies)

    def _send(
        self, parts: list[Job], lane: str, client: str, until: float, is_wanted: Callable[[], bool] | None
    ) -> list[Reply]:
        """Put the jobs, all or none, and return their replies; what is not answered at an error is withdrawn."""
        dispatcher = self.connect()
        pending = dispatcher.call(lane, parts, client)
        try:
            return [_wait(reply, until, is_wanted) for reply in pending]
        finally:
            dispatcher.forget(parts)

    def _check_token_vectors(self, job: Job) -> None:
        """Raise TooLarge if the job asks for token vectors that are certainly too large for a reply."""
        if job.options.output != "tokens":
            return
        sizes = [(about.get("dimension"), about.get("max_tokens")) for about in self.pool.first_heartbeats().values()]
        if known := [(d, m) for d, m in sizes if isinstance(d, int) and isinstance(m, int)]:
            dimension, max_tokens = min(d for d, _ in known), min(m for _, m in known)
            check_token_vectors(job.texts, job.options.truncation_side, max_tokens, dimension, self.max_reply_bytes)

    def _wait_until_admitted(self, dispatcher: Dispatcher, lane: str, job: Job, pending: PendingReply) -> Reply:
        """Return the reply to the job, sending it again while the lane is full.

        Raises Overloaded once that took `timeout_s`, and Timeout if a job in the lane has no answer for so long.
        """
        until = time.monotonic() + self.timeout_s
        while True:
            try:
                return Reply.join([pending.result(self.timeout_s)])
            except TimeoutError as error:
                raise self._timeout(self.timeout_s) from error
            except Overloaded as error:
                if time.monotonic() + error.retry_after_s > until:
                    raise
                time.sleep(error.retry_after_s)
            (pending,) = dispatcher.call(lane, [job], self.name)

    def _timeout(self, timeout_s: float) -> Timeout:
        num_alive = len(self.pool.alive())
        cause = f"{num_alive} workers are alive but busy; try again or add some"
        return Timeout(f"no answer within {timeout_s:g} s: {cause if num_alive else 'no worker is alive; start one'}")


def _wait(pending: PendingReply, until: float, is_wanted: Callable[[], bool] | None) -> Reply:
    while True:
        left_s = max(0.0, until - time.monotonic())
        try:
            return pending.result(min(left_s, WANTED_EVERY_S) if is_wanted else left_s)
        except TimeoutError:
            if is_wanted is None or left_s <= WANTED_EVERY_S:
                raise
            if not is_wanted():
                raise Cancelled("the caller has disconnected") from None


def _vectors(reply: Reply, options: Options) -> NDArray[np.float32] | list[NDArray[np.float32]]:
    """Return the vectors of a reply to an embed: one row for each text, or one array of token vectors."""
    if options.output == "tokens":
        return reply.rows_by_text()
    assert reply.vectors is not None
    return reply.vectors
