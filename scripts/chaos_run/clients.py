"""The clients: threads that ask the cases, each when it is time, and ask again until they know how a case ended."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from threading import Lock, Thread
from typing import Any, TypeVar

import numpy as np
import redis

from chaos_run.answers import Answers, K, is_right_error
from chaos_run.cases import Case
from chaos_run.deployment import Deployment
from chaos_run.http import Http, NoAnswer
from chaos_run.outcomes import Outcomes
from chaos_run.plain import Plain
from chaos_run.proxy import PRODUCERS
from shoal import Client
from shoal.errors import BY_CODE, ShoalError, UnknownJob
from shoal.jobs import Job

#: How long a client waits before it asks again, and how long `shoal.Client` waits for an answer.
AGAIN_S, CALL_S = 0.2, 10.0

#: One in so many is submitted a second time with the same key, for no reason.
ASKED_AGAIN = 10

#: Codes after which the same request may succeed.
_PASSING = ("overloaded", "unavailable", "not_ready", "timeout")

T = TypeVar("T")


class Over(Exception):
    """The end of a case before its answer, which is noted."""


class GaveUp(Exception):
    """The end of the run before that of a case."""


class Clients:
    """So many good clients."""

    def __init__(
        self, deployment: Deployment, answers: Answers, outcomes: Outcomes, cases: Sequence[Case], num_threads: int
    ):
        self._ports, self._answers, self._outcomes = list(deployment.api_ports.values()), answers, outcomes
        url, settings = deployment.url_of(PRODUCERS), deployment.settings
        self._client = Client(url, timeout_s=CALL_S, key_prefix=settings.key_prefix, pool=settings.pool)
        self._plain = Plain(url, settings)
        self._routes: dict[str, Callable[[Case, Http], None]] = {
            "wait": self._wait,
            "submit": self._submit,
            "cancelled": self._cancel,
            "leaving": lambda case, http: http.leave(*_waiting_request(case)),
            "call": self._call,
            "handle": self._handle,
            "plain": self._put,
            "address": self._put_with_address,
            "expired": self._put_late,
            "malformed": self._put_malformed,
        }
        self._cases: Iterator[Case] = iter(cases)
        self._lock = Lock()
        self._started_s, self._gives_up_s = 0.0, float("inf")
        self._threads = [Thread(target=self._run, daemon=True) for _ in range(num_threads)]

    def start(self) -> None:
        """Start to ask."""
        self._started_s = time.monotonic()
        for thread in self._threads:
            thread.start()

    @property
    def are_busy(self) -> bool:
        """True if any of them has something left to do."""
        return any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """End the clients that still wait."""
        self._gives_up_s = 0.0
        for thread in self._threads:
            if thread.ident:
                thread.join(30)
        self._client.close()
        self._plain.close()

    def _run(self) -> None:
        with closing(Http(self._ports)) as http:
            while case := self._next():
                self._outcomes.unfinished.add(case.number)
                try:
                    (self._routes.get(case.kind) or self._routes[case.route])(case, http)
                except GaveUp:
                    continue
                except Over:
                    pass
                except Exception as error:  # of these scripts: it must not pass for a lost job
                    self._outcomes.breach(f"the client of case {case.number} failed: {error!r}")
                self._outcomes.unfinished.discard(case.number)

    def _next(self) -> Case | None:
        """Return the next case when it is time for it."""
        with self._lock:
            case = next(self._cases, None)
        if case:
            time.sleep(max(0.0, self._started_s + case.at_s - time.monotonic()))
        return case

    def _until(self, case: Case, what: str, step: Callable[[], T | None]) -> T:
        """Repeat the step until it returns something. Raises Over at an error that is final, and GaveUp."""
        while time.monotonic() < self._gives_up_s:
            try:
                if (found := step()) is not None:
                    return found
            except UnknownJob as error:
                self._outcomes.breach(f"case {case.number} ({case.kind}, {case.route}): an accepted job: {error}")
                raise Over from error
            except ShoalError as error:
                if is_right_error(case, error.code):
                    self._outcomes.answer(case, "", outcome=error.code)
                    raise Over from error
                if error.code not in _PASSING:
                    self._outcomes.answer(case, f"{what}: {error.code}: {error.message}")
                    raise Over from error
                self._outcomes.refuse(f"{what}: {error.code}")
            except (NoAnswer, redis.RedisError) as error:
                self._outcomes.refuse(f"{what}: {str(error) if isinstance(error, NoAnswer) else type(error).__name__}")
            time.sleep(AGAIN_S)
        raise GaveUp

    def _check(self, case: Case, found: Any) -> None:
        self._outcomes.answer(case, self._answers.wrong(case, found))

    # Over HTTP

    def _wait(self, case: Case, http: Http) -> None:
        _, body = self._until(case, "wait", lambda: http.ask("POST", *_waiting_request(case)))
        self._check(case, body["results"] if case.op == "search" else body)

    def _submit(self, case: Case, http: Http) -> None:
        """Submit with an idempotency key, so that the job is one job however often that is tried, and fetch."""
        job_id = self._submitted(case, http)
        if case.number % ASKED_AGAIN == 0 and (again := self._submitted(case, http)) != job_id:
            self._outcomes.breach(f"case {case.number}: one idempotency key made jobs {job_id} and {again}")
        self._fetch(case, http, job_id)

    def _cancel(self, case: Case, http: Http) -> None:
        """Submit and cancel; whether that came in time or not, there is an answer."""
        job_id = self._submitted(case, http)
        try:
            http.ask("DELETE", f"/v1/jobs/{job_id}")
        except (NoAnswer, ShoalError) as error:
            self._outcomes.refuse(f"cancel: {error}")
        self._fetch(case, http, job_id)

    def _submitted(self, case: Case, http: Http) -> str:
        asked: dict[str, Any] = {"queries": case.texts, "k": K} if case.op == "search" else {"inputs": case.texts}
        body, key = {"op": case.op, "lane": case.lane, **asked}, f"case-{case.number}"
        _, found = self._until(case, "submit", lambda: http.ask("POST", "/v1/jobs", body, Idempotency_Key=key))
        self._outcomes.accept(case, found["id"])
        return str(found["id"])

    def _fetch(self, case: Case, http: Http, job_id: str) -> None:
        def fetched() -> Any:
            status, body = http.ask("GET", f"/v1/jobs/{job_id}/result?wait=5")
            return body if status == 200 else None

        body = self._until(case, "fetch", fetched)
        self._check(case, body["results"] if case.op == "search" else body["embeddings"])

    # With shoal.Client

    def _call(self, case: Case, _: Http) -> None:
        job = Job(case.op, list(case.texts), k=K)
        reply = self._until(case, "call", lambda: self._client.call(job, lane=case.lane))
        self._outcomes.answer(case, self._answers.wrong_reply(case, reply))

    def _handle(self, case: Case, _: Http) -> None:
        """Submit and fetch; where it is not known whether the job got in, another one is submitted."""
        sent = self._until(case, "submit", lambda: self._client.submit(case.op, case.texts, lane=case.lane, k=K))
        self._outcomes.accept(case, sent.id)
        reply = self._until(case, "fetch", lambda: self._client.job(sent.id).result(5))
        self._outcomes.answer(case, self._answers.wrong_reply(case, reply))

    # With a Redis client and docs/protocol.md

    def _put(self, case: Case, _: Http, deadline: float | None = None) -> None:
        """Put a job, and read its result."""
        job_id = f"plain-{case.number}"
        self._until(case, "plain", lambda: _done(self._plain.put, case, job_id, deadline))
        self._outcomes.accept(case, job_id)
        self._check(case, self._until(case, "plain", lambda: _content(self._plain.results(job_id))))

    def _put_late(self, case: Case, http: Http) -> None:
        self._put(case, http, time.time() - 1)

    def _put_with_address(self, case: Case, _: Http) -> None:
        """Put a job with an address of its own for the reply; where it is not known whether it got in, once more."""
        name = f"address-{case.number}"
        self._put_counted(case, lambda: self._plain.put(case, name, reply_to=name))
        self._check(case, self._until(case, "plain", lambda: _content(self._plain.replies(name))))

    def _put_malformed(self, case: Case, _: Http) -> None:
        self._put_counted(case, lambda: self._plain.put_garbage(case))

    def _put_counted(self, case: Case, put: Callable[[], None]) -> None:
        self._until(case, "plain", lambda: _done(self._outcomes.put, case) and _done(put))


def _waiting_request(case: Case) -> tuple[str, dict[str, Any]]:
    if case.op == "search":
        return "/search", {"queries": case.texts, "k": K}
    return "/embed", {"inputs": case.texts}


def _done(do: Callable[..., None], *arguments: object) -> bool:
    do(*arguments)
    return True


def _content(replies: Sequence[dict[str, Any]]) -> Any:
    """Return the vectors or hits of the first reply, as docs/protocol.md has them. Raises the error in it."""
    if not replies:
        return None
    if error := replies[0].get("error"):
        raise BY_CODE[error["code"]](error["message"])
    vectors = replies[0].get("vectors")
    return replies[0]["hits"] if vectors is None else np.frombuffer(vectors["data"], "<f4").reshape(vectors["shape"])
