"""The clients: threads that ask each case at its time, and repeat it until they know its outcome."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import redis

from chaos_run.answers import Answers, K, content, is_right_error
from chaos_run.cases import Case, Outcomes
from chaos_run.deployment import PRODUCERS, Deployment
from chaos_run.http_requests import Http
from chaos_run.plain import Plain
from shoal import Client
from shoal.contract.jobs import Job
from shoal.contract.options import Options
from shoal.errors import ShoalError
from shoal.operations import Search, job_class

#: Number of clients.
NUM_THREADS = 48

#: Seconds that a client waits before it asks again, and that `shoal.Client` waits for an answer.
AGAIN_S, CALL_S = 0.2, 10.0

#: Addresses that the clients share. To the APIs each address is one client.
ADDRESSES = [f"127.0.0.{n}" for n in range(2, 8)]

#: Seconds that a slow reader waits after each piece of its answer.
SLOW_PAUSE_S = 0.1

#: One in this many jobs with an idempotency key is submitted twice with the same key, although nothing failed.
ASKED_AGAIN = 10

#: Codes of errors after which the same request may succeed.
_PASSING = ("overloaded", "unavailable", "not_ready", "timeout")

T = TypeVar("T")

#: A function that puts a case and returns the id of its job; the id is empty if the job has no record.
Put = Callable[[Http, Case], str]

#: A function that returns the vectors or hits of a case, whose job has this id, or None while there are none.
Fetch = Callable[[Http, Case, str], Any]


class Over(Exception):
    """A case ended before its answer; its outcome is already noted."""


class GaveUp(Exception):
    """The run ended before the case."""


class Clients:
    """The threads of all clients, and the functions by which each route puts a case and fetches its answer."""

    def __init__(self, deployment: Deployment, answers: Answers, outcomes: Outcomes, cases: Sequence[Case]):
        self._ports, self._answers, self._outcomes = deployment.api_ports.values(), answers, outcomes
        url, settings = deployment.url_of(PRODUCERS), deployment.settings
        self._client = Client.from_settings(replace(settings, redis_url=url, request_timeout_s=CALL_S))
        self._plain = Plain(url, settings)
        self._routes = self._steps(self._client, self._plain)
        self._cases: SimpleQueue[Case] = SimpleQueue()
        for case in cases:
            self._cases.put(case)
        self._started_s, self._gives_up_s = 0.0, float("inf")
        addresses = [ADDRESSES[n % len(ADDRESSES)] for n in range(NUM_THREADS)]
        self._threads = [Thread(target=self._run, args=(address,), daemon=True) for address in addresses]

    @staticmethod
    def _steps(client: Client, plain: Plain) -> dict[str, tuple[Put | None, Fetch | None]]:
        """Return the steps of routes and odd kinds. All steps may be repeated; a `handle` is then a new job."""
        return {
            "wait": (None, lambda http, case, _: http.wait(case)),
            "submit": (Http.submit, Http.fetch),
            "leaving": (lambda http, case: http.leave(case) or "", None),
            "call": (None, lambda _, case, __: content(client.call(_job(case), lane=case.lane))),
            "handle": (
                lambda _, case: client.put(_job(case), case.lane, idempotency_key=_key(case)),
                lambda _, __, job_id: content(client.job(job_id).result(5)),
            ),
            "plain": (lambda _, case: plain.put(case), lambda _, __, job_id: plain.result(job_id)),
            "expired": (lambda _, case: plain.put(case, time.time() - 1), lambda _, __, job_id: plain.result(job_id)),
            "address": (lambda _, case: plain.put_with_address(case), lambda _, case, __: plain.reply(case)),
            "unreadable": (lambda _, case: plain.put_unreadable(case), lambda _, __, job_id: plain.result(job_id)),
            "malformed": (lambda _, case: plain.put_garbage(case), None),
        }

    def start(self) -> None:
        """Start the threads."""
        self._started_s = time.monotonic()
        for thread in self._threads:
            thread.start()

    @property
    def are_busy(self) -> bool:
        """True if any client has cases left."""
        return any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """End the clients that still wait."""
        self._gives_up_s = 0.0
        for thread in self._threads:
            if thread.ident:
                thread.join(30)
        self._client.close()
        self._plain.close()

    def _run(self, address: str) -> None:
        with closing(Http(self._ports, address)) as http, suppress(Empty):
            while case := self._cases.get_nowait():
                time.sleep(max(0.0, self._started_s + case.at_s - time.monotonic()))
                self._outcomes.unfinished.add(case.number)
                try:
                    self._ask(http, case)
                except GaveUp:
                    continue
                except Over:
                    pass
                except Exception as error:  # an error in these scripts must not look like a lost job
                    self._outcomes.breach(case, f"its client failed: {error!r}")
                self._outcomes.unfinished.discard(case.number)

    def _ask(self, http: Http, case: Case) -> None:
        """Put the case, perhaps a second time, perhaps cancel it, and check the fetched answer."""
        put, fetch = self._routes.get(case.kind) or self._routes[case.route]
        http.pause_s = SLOW_PAUSE_S if case.kind == "slow reader" else 0.0
        job_id = self._put(http, case, put) if put else ""
        asks_again = put and case.is_keyed and case.number // 2 % ASKED_AGAIN == 0
        if put and asks_again and (again := self._put(http, case, put)) != job_id:
            self._outcomes.breach(case, f"one idempotency key made jobs {job_id} and {again}")
        if case.kind == "cancelled":  # there is an answer even if the cancellation comes too late
            try:
                http.ask("DELETE", f"/v1/jobs/{job_id}")
            except (ConnectionError, ShoalError) as error:
                self._outcomes.refused.append(f"cancel: {error}")
        if fetch:
            found = self._until(case, "fetch", lambda: fetch(http, case, job_id))
            self._outcomes.answer(case, self._answers.wrong(case, found))

    def _put(self, http: Http, case: Case, put: Put) -> str:
        def counted() -> str:
            self._outcomes.puts[case.number] += 1
            return put(http, case)

        if job_id := self._until(case, "put", counted):
            self._outcomes.accepted[job_id] = case
        return job_id

    def _until(self, case: Case, what: str, step: Callable[[], T | None]) -> T:
        """Repeat the step until it returns something. Raises Over after a final error, and GaveUp."""
        what = f"{case.route}, {what}"
        while time.monotonic() < self._gives_up_s:
            try:
                if (found := step()) is not None:
                    return found
            except ShoalError as error:
                if error.code not in _PASSING:
                    wrong = "" if is_right_error(case, error.code) else f"{what}: {error.code}: {error.message}"
                    self._outcomes.answer(case, wrong, outcome=error.code)
                    raise Over from error
                self._outcomes.refused.append(f"{what}: {error.code}")
            except ConnectionError as error:
                self._outcomes.refused.append(f"{what}: {error}")
            except redis.RedisError as error:
                self._outcomes.refused.append(f"{what}: {type(error).__name__}")
            time.sleep(AGAIN_S)
        raise GaveUp


def _job(case: Case) -> Job:
    texts, options = list(case.texts), Options(output=case.output)
    return Search(texts, options, k=K) if case.op == "search" else job_class(case.op)(texts, options)


def _key(case: Case) -> str | None:
    return f"case-{case.number}" if case.is_keyed else None
