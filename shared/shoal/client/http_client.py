"""The client of programs that reach the API and not Redis: the methods of `Client`, over HTTP."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from shoal.client.http_messages import RequestLimits, body_of, reply_of, reply_to
from shoal.client.parts import TEXTS_PER_JOB, TEXTS_PER_TOKENS_JOB, Vectors, as_list, check_key, check_lane, vectors
from shoal.errors import InvalidRequest, MalformedJob, MissingExtra, Timeout, TooLarge, UnknownJob
from shoal.excerpt import excerpt
from shoal.extra import install_command
from shoal.jobs import Job, Options
from shoal.keys import NAME
from shoal.replies import Reply
from shoal.settings import DEFAULTS

if TYPE_CHECKING:
    from ssl import SSLContext

    from shoal.client.http_session import Answer, HttpSession

#: Most requests of one call that are under way at a time.
MAX_REQUESTS = 4

#: Longest time that one request waits for the result of a job: many proxies end those that take a minute.
MAX_WAIT_S = 20.0

#: Seconds for an answer to arrive, beside the time that its request waits for the result of a job.
ROUND_TRIP_S = 5.0

#: Waits for so many seconds; returns true if the caller gives up meanwhile.
Pause = Callable[[float], object]


class HttpClient:
    """A program's end of an API. Thread-safe, and works on both sides of a fork; needs the extra `http`.

    `key` is an API key. `timeout_s` is the longest time of a call, and of each request of `embed_stream`, with all
    attempts: a request is sent again after 429 and 503, when the API says, and after errors of the connection.
    `verify`, `proxy` and `trust_env` are those of `httpx2.Client`.

    Every method raises the errors that the API answers, as `Client` does; Unavailable if it does not answer, or another
    program does; Timeout; and MalformedJob for an answer that cannot be right.
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
    ):
        self._session = _open_session(url, key, verify=verify, proxy=proxy, trust_env=trust_env)
        #: The URL of the API, without a slash at its end.
        self.url = self._session.url
        self.timeout_s = timeout_s
        self._limits: RequestLimits | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a later call makes new ones."""
        self._session.close()

    def embed(self, texts: str | Iterable[str], **options: Any) -> Vectors:
        """Return the vectors of the texts: float32 `[texts, dimension]`, or `[dimension]` for a single str.

        With `output="tokens"`, return a list with one `[tokens, dimension]` array for each text.
        """
        job = Job("embed", as_list(texts), Options(**options))
        rows = vectors(self._call(job), job.options)
        return rows[0] if isinstance(texts, str) else rows

    def search(self, queries: str | Iterable[str], k: int = 5, index: str = "default", **options: Any) -> list[Any]:
        """Return the `k` nearest documents of each query, best first: a list of hits for each, or one for a single str.

        A hit is a dict with `id`, `score`, `text` and the document's other fields.
        """
        hits = self._call(Job("search", as_list(queries), Options(**options), k=k, index=index)).hits or []
        return hits[0] if isinstance(queries, str) else hits

    def embed_stream(
        self, texts: Iterable[str], *, window: int = 8, lane: str = "bulk", **options: Any
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of any number of texts in order, with at most `window` requests unanswered at a time.

        Memory stays constant however many texts there are. While the lane is full, a request is sent again until it has
        been refused for `timeout_s`. Closing the iterator early takes until the requests under way are answered.
        """
        check_lane(lane)
        parsed, source = Options(**options), iter(texts)
        num_texts = TEXTS_PER_TOKENS_JOB if parsed.output == "tokens" else TEXTS_PER_JOB
        chunks = iter(lambda: list(islice(source, num_texts)), [])
        jobs = (part for chunk in chunks for part in self._split(Job("embed", chunk, parsed), self._until()))
        for reply in _in_order(lambda job, pause: self._wait(job, self._until(), pause, lane), jobs, window):
            yield from vectors(reply, parsed)

    def submit(
        self,
        op: str,
        texts: str | Iterable[str],
        *,
        lane: str = "interactive",
        k: int = 5,
        index: str = "default",
        idempotency_key: str | None = None,
        **options: Any,
    ) -> "HttpHandle":
        """Put a job and return at once; any program that knows its id can fetch the result, until it expires.

        All texts stay in one job, which has no deadline. Submitting the same again with the same `idempotency_key`
        within a day returns the job that was put first. Without one, the client makes one for its own attempts.
        """
        job = Job(op, as_list(texts), Options(**options), k=k, index=index)
        headers = {"Idempotency-Key": uuid4().hex if idempotency_key is None else check_key(idempotency_key)}
        if not headers["Idempotency-Key"].isascii():
            raise InvalidRequest(f"the idempotency key is {excerpt(idempotency_key)}: over HTTP it takes ASCII alone")
        body = body_of(job, op=op, lane=check_lane(lane))
        answer = self.ask("POST", "/v1/jobs", self._until(), body=body, headers=headers)
        return HttpHandle(self, _text(answer, "id"))

    def job(self, job_id: str) -> "HttpHandle":
        """Return the handle of a job that was submitted earlier, perhaps by another program."""
        return HttpHandle(self, job_id)

    def ask(self, method: str, path: str, until: float | None = None, **options: Any) -> "Answer":
        """Send a request and return its answer, as `HttpSession.ask` does: until `timeout_s`, or the time `until`.

        Raises Timeout.
        """
        started_s = time.monotonic()
        until = self._until() if until is None else until
        try:
            return self._session.ask(method, path, until, **options)
        except TimeoutError as error:
            within = f"within {until - started_s:.3g} s from {self.url}"
            raise Timeout(f"no answer {within}: try again, or ask for less at a time") from error

    def _call(self, job: Job) -> Reply:
        """Return the reply to the job, which is sent in parts if it is long."""
        until = self._until()
        parts = self._split(job, until)
        if len(parts) == 1:
            return self._wait(parts[0], until)
        return Reply.join(list(_in_order(lambda part, pause: self._wait(part, until, pause), parts, MAX_REQUESTS)))

    def _wait(self, job: Job, until: float, pause: Pause = time.sleep, lane: str = "interactive") -> Reply:
        """Return the reply to a job that goes into one request."""
        try:
            answer = self.ask("POST", f"/{job.op}", until, body=body_of(job, lane=lane), pause=pause)
        except TooLarge:
            self._limits = None  # the API may have got lower ones
            raise
        return reply_to(job, answer.values())

    def _split(self, job: Job, until: float) -> list[Job]:
        """Return jobs that each go into one request, and together ask the same."""
        if len(job.texts) == 1:
            return [job]
        if self._limits is None:
            self._limits = RequestLimits.from_info(self.ask("GET", "/info", until).values())
        return self._limits.split(job)

    def _until(self) -> float:
        return time.monotonic() + self.timeout_s


@dataclass(frozen=True, slots=True)
class HttpHandle:
    """A submitted job."""

    client: HttpClient
    id: str

    def result(self, timeout_s: float | None = None) -> Reply:
        """Return the job's reply, waiting for it.

        Raises the reply's error, Timeout, or UnknownJob once the result has expired.
        """
        timeout_s = self.client.timeout_s if timeout_s is None else timeout_s
        until = time.monotonic() + timeout_s
        while True:
            wait_s = max(0.0, min(MAX_WAIT_S, until - time.monotonic()))
            path = f"{self._path()}/result?wait={wait_s:.3f}"
            answer = self.client.ask("GET", path, time.monotonic() + wait_s + ROUND_TRIP_S)
            if answer.status != 202:
                return reply_of(self.id, answer.values())
            if time.monotonic() >= until:
                raise Timeout(f"job {self.id} has no answer after {timeout_s:g} s: it keeps its place, ask again")

    def status(self) -> str:
        """Return one of queued, running, done, failed, cancelled and expired."""
        return _text(self.client.ask("GET", self._path()), "status")

    def cancel(self) -> str:
        """Cancel the job unless it is answered; return its status after that."""
        return _text(self.client.ask("DELETE", self._path()), "status")

    def _path(self) -> str:
        if not NAME.fullmatch(self.id) or not self.id.strip("."):
            raise UnknownJob(f"no job {excerpt(self.id)}: ids of jobs have letters and digits")
        return f"/v1/jobs/{self.id}"


def _in_order(wait: Callable[[Job, Pause], Reply], jobs: Iterable[Job], window: int) -> Iterator[Reply]:
    """Yield the replies to jobs in order, with at most `window` of them under way at a time, each in a thread."""
    stopped, sent = Event(), deque[Future[Reply]]()
    threads = ThreadPoolExecutor(window)
    try:
        for job in jobs:
            sent.append(threads.submit(wait, job, stopped.wait))
            if len(sent) == window:
                yield sent.popleft().result()
        while sent:
            yield sent.popleft().result()
    finally:
        stopped.set()
        threads.shutdown(cancel_futures=True)


def _text(answer: "Answer", name: str) -> str:
    """Return a field of an answer; raise MalformedJob unless it is a string."""
    value = answer.values().get(name)
    if not isinstance(value, str):
        raise MalformedJob(f"the answer of {answer.source} has no {name}: check Shoal's version")
    return value


def _open_session(url: str, key: str, **options: Any) -> "HttpSession":
    """Return a session; raise MissingExtra without the library that it takes."""
    try:
        from shoal.client.http_session import HttpSession
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"HttpClient needs {error.name!r}, which is not installed: {install_command('http')}"
        ) from error
    return HttpSession(url, key, **options)
