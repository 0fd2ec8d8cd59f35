"""The client for programs that have access to the API but not to Redis: the methods of `Client`, over HTTP."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING, Any

from shoal.client.http.answer import Answer, RequestLimits, reply_of
from shoal.client.http.long_jobs import HttpIndexHandle, HttpLongHandle, HttpLongJobs, job_path, once
from shoal.client.job_source import File
from shoal.client.long_job_handles import IndexHandle
from shoal.client.splitting import MAX_WINDOW, batches, jobs_to_repeat
from shoal.client.text_client import TextClient, by_text, options_of
from shoal.contract.checks import check_range
from shoal.contract.jobs import Job, check_lane
from shoal.contract.replies import FINGERPRINT_HEADER, Reply
from shoal.errors import MissingExtra, Timeout, TooLarge
from shoal.operations import Embed
from shoal.operations.embed import texts_at_a_time
from shoal.process.extra import install_command
from shoal.settings import DEFAULTS

if TYPE_CHECKING:
    from ssl import SSLContext

#: Largest number of unanswered requests that one call has at a time.
MAX_REQUESTS = 4

#: Longest time that one request waits for a job's result, in seconds. Many proxies end a request after a minute.
MAX_WAIT_S = 20.0

#: Seconds for an answer to arrive, in addition to the time for which its request waits for the job's result.
ROUND_TRIP_S = 5.0

#: A function that waits for the given number of seconds, and returns true if the caller gives up meanwhile.
Pause = Callable[[float], object]


class HttpClient(TextClient):
    """A program's connection to an API. Thread-safe, and usable in both processes after a fork. Needs the extra `http`.

    `key` is an API key. `timeout_s` limits the time of a call, or of each request of `embed_stream`, over all attempts.
    A request is sent again after a failed connection, and after the statuses 429 and 503 at the time that the API
    names. `verify`, `proxy` and `trust_env` are options of `httpx2.Client`. `fingerprint` is as in `AsyncClient`.

    Every method raises the errors in the API's answers, as `Client` does; Unavailable if the API does not answer or
    another program answers; Timeout; and MalformedJob for an answer that contradicts itself or the question.
    """

    def __init__(
        self,
        url: str = "http://localhost:8080",
        key: str = "",
        *,
        timeout_s: float = DEFAULTS.request_timeout_s,
        verify: "SSLContext | bool" = True,
        proxy: str | None = None,
        trust_env: bool = True,
        fingerprint: str = "",
    ):
        try:
            from shoal.client.http.session import HttpSession
        except ModuleNotFoundError as error:
            raise MissingExtra(
                f"HttpClient needs {error.name!r}, which is not installed: {install_command('http')}"
            ) from error
        self._session = HttpSession(url, key, verify=verify, proxy=proxy, trust_env=trust_env)
        #: The URL of the API, without a slash at its end.
        self.url = self._session.url
        self.timeout_s = timeout_s
        self.fingerprint = fingerprint
        self._limits: RequestLimits | None = None

    def close(self) -> None:
        """Close the connections. Calls of other threads get Unavailable; a later call makes new connections."""
        self._session.close()

    def embed_stream(
        self, texts: Iterable[str], *, window: int = 8, lane: str = "bulk", **options: Any
    ) -> Iterator[Any]:
        """Yield the vectors of any number of texts in order, with at most `window` unanswered requests at a time.

        Memory use does not grow with the number of texts. A request that is refused by a full lane is sent again until
        `timeout_s` have passed. Closing the iterator early waits for the answers to the requests under way.
        """
        check_lane(lane)
        check_range("window", window, 1, MAX_WINDOW)
        parsed, fingerprint = options_of(options), self.fingerprint
        sources = (Embed(group, parsed).pinned(self.fingerprint) for group in batches(texts, texts_at_a_time(parsed)))
        jobs = (part for job in sources for part in self._split(job, self.until()))
        for job, reply in _in_order(lambda job, pause: self._wait(job, self.until(), pause, lane), jobs, window):
            fingerprint = fingerprint or reply.fingerprint
            if reply.fingerprint not in ("", fingerprint):
                reply = self._wait(job.pinned(fingerprint), self.until(), lane=lane)
            yield from by_text(reply, parsed)

    def put(self, job: Job, lane: str = "interactive", idempotency_key: str | None = None) -> str:
        about = {"op": job.op, "lane": check_lane(lane), "timeout_s": job.timeout_s}
        headers = once(idempotency_key)
        if pin := job.pinned(self.fingerprint).fingerprint:
            headers[FINGERPRINT_HEADER] = pin
        return self.ask("POST", "/v1/jobs", body=job.packed(job.body() | about), headers=headers).text("id")

    def bulk(
        self,
        source: File,
        *,
        text_column: str | None = None,
        id_column: str | None = None,
        format: str = "safetensors",
        idempotency_key: str | None = None,
        **options: Any,
    ) -> HttpLongHandle:
        """Submit a job that embeds a file, which is uploaded, or a `ServerFile`; return once it is submitted.

        `HttpLongHandle.save` downloads the vectors. An upload may take a second for each MiB, in addition to
        `timeout_s`.
        """
        fields = {"text_column": text_column, "id_column": id_column, "format": format} | options
        return self.long_job(HttpLongJobs(self).submit("/v1/bulk", source, fields, idempotency_key))

    def index(self, name: str) -> IndexHandle:
        """Return the handle of an index, for changes of its documents and versions."""
        return HttpIndexHandle(HttpLongJobs(self), name)

    def long_job(self, job_id: str) -> HttpLongHandle:
        """Return the handle of a long job that was submitted earlier, perhaps by another program."""
        return HttpLongHandle(HttpLongJobs(self), job_id)

    def until(self, extra_s: float = 0.0) -> float:
        """Return the deadline, on the monotonic clock, of a call that may take `timeout_s` and `extra_s` from now."""
        return time.monotonic() + self.timeout_s + extra_s

    def ask(self, method: str, path: str, until: float | None = None, **options: Any) -> Answer:
        """Send a request, as `HttpSession.ask` does, and return its answer; raise Timeout if none comes in time."""
        try:
            return self._session.ask(method, path, self.until() if until is None else until, **options)
        except TimeoutError as error:
            raise Timeout(
                f"no answer within {self.timeout_s:g} s from {self.url}: try again, or ask for less at a time"
            ) from error

    def _call(self, job: Job) -> Reply:
        """Return the reply to the job. A job with many texts is sent in parts."""
        until = self.until()
        parts = self._split(job.pinned(self.fingerprint), until)
        if len(parts) == 1:
            return self._wait(parts[0], until)

        def compute(jobs: Iterable[Job]) -> list[Reply]:
            sent = _in_order(lambda part, pause: self._wait(part, until, pause), jobs, MAX_REQUESTS)
            return [reply for _, reply in sent]

        replies = compute(parts)
        for pause_s, numbers, again in jobs_to_repeat(parts, replies, until):
            time.sleep(pause_s)
            for n, reply in zip(numbers, compute(again), strict=True):
                replies[n] = reply
        return Reply.join(replies)

    def _wait(self, job: Job, until: float, pause: Pause = time.sleep, lane: str = "interactive") -> Reply:
        """Return the reply to a job that fits into one request."""
        body, pin = job.packed(job.body() | {"lane": lane}), job.fingerprint
        headers = {FINGERPRINT_HEADER: pin} if pin else {}
        try:
            answer = self.ask("POST", job.path, until, body=body, headers=headers, pause=pause)
        except TooLarge:
            self._limits = None  # the API may have lower limits now
            raise
        reply = reply_of(job.id, {"fingerprint": answer.headers.get(FINGERPRINT_HEADER, "")} | answer.values())
        reply = Reply.join([reply.of_pinned(pin)])
        job.check_answers(reply)
        return reply

    def _split(self, job: Job, until: float) -> list[Job]:
        """Split the job into jobs that each fit into one request."""
        if len(job.texts) == 1:
            return [job]
        limits = self._limits = self._limits or RequestLimits.from_info(self.ask("GET", "/info", until).values())
        return limits.split(job)

    def _result(self, job_id: str, timeout_s: float | None) -> Reply:
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        until = time.monotonic() + timeout_s
        while True:
            wait_s = max(0.0, min(MAX_WAIT_S, until - time.monotonic()))
            path = f"{job_path(job_id)}/result?wait={wait_s:.3f}"
            with suppress(Timeout):
                answer = self.ask("GET", path, time.monotonic() + wait_s + ROUND_TRIP_S)
                if answer.status != 202:
                    reply = reply_of(job_id, answer.values())
                    pin = self.fingerprint if reply.scores is None else ""  # the reranker has another fingerprint
                    return Reply.join([reply.of_pinned(pin)])
            if time.monotonic() >= until:
                raise Timeout(f"job {job_id} has no answer after {timeout_s:g} s: it keeps its place, ask again")

    def _status(self, job_id: str) -> str:
        return self.ask("GET", job_path(job_id)).text("status")

    def _cancel(self, job_id: str) -> str:
        return self.ask("POST", f"{job_path(job_id)}/cancel").text("status")


def _in_order(wait: Callable[[Job, Pause], Reply], jobs: Iterable[Job], window: int) -> Iterator[tuple[Job, Reply]]:
    """Yield jobs with their replies in order. At most `window` jobs run at a time, each in its own thread."""
    stopped, sent = Event(), deque[Future[tuple[Job, Reply]]]()
    threads = ThreadPoolExecutor(window)
    try:
        for job in jobs:
            sent.append(threads.submit(lambda one: (one, wait(one, stopped.wait)), job))
            if len(sent) == window:
                yield sent.popleft().result()
        while sent:
            yield sent.popleft().result()
    finally:
        stopped.set()
        threads.shutdown(cancel_futures=True)
