"""The ways straight into Redis: with `shoal.Client`, and with nothing but a Redis client and docs/protocol.md."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import redis

from chaos_run.answers import K
from chaos_run.cases import Case
from chaos_run.patience import Patience
from chaos_run.plain import Plain
from shoal import Client
from shoal.errors import ShoalError, UnknownJob
from shoal.jobs import Job
from shoal.settings import Settings

#: How long `shoal.Client` waits for an answer.
CALL_S = 10.0


class RedisWays:
    """Asks cases without the API. Thread-safe."""

    def __init__(self, url: str, settings: Settings, patience: Patience):
        self._patience = patience
        self._client = Client(url, timeout_s=CALL_S, key_prefix=settings.key_prefix, pool=settings.pool)
        self._plain = Plain(url, settings)

    def close(self) -> None:
        """Drops all connections."""
        self._client.close()
        self._plain.close()

    def call(self, case: Case) -> bool:
        """Calls and waits for the answer, again and again."""
        return self._patience.until(lambda: self._called(case))

    def handle(self, case: Case) -> bool:
        """Submits and fetches; where it is not known whether the job got in, another one is submitted."""
        ids: list[str] = []
        submitted = self._patience.until(lambda: self._submitted(case, ids))
        return submitted and self._patience.until(lambda: self._fetched(case, ids[0]))

    def plain(self, case: Case, deadline: float | None = None) -> bool:
        """Puts a job by the documented script, and reads its result."""
        job_id = f"plain-{case.number}"
        put = self._patience.until(lambda: self._tried(lambda: self._plain.put(case, job_id, deadline)))
        if put:
            self._patience.ledger.accept(case, job_id)
        return put and self._patience.until(lambda: self._read(case, lambda: self._plain.results(job_id)))

    def address(self, case: Case) -> bool:
        """Puts a job with an address of its own for the reply; where it is not known whether it got in, once more."""
        name = f"address-{case.number}"

        def put() -> None:
            self._patience.ledger.put(case)
            self._plain.put(case, name, reply_to=name)

        put_in = self._patience.until(lambda: self._tried(put))
        return put_in and self._patience.until(lambda: self._read(case, lambda: self._plain.replies(name)))

    def expire(self, case: Case) -> bool:
        """Puts a job whose deadline is over."""
        return self.plain(case, time.time() - 1)

    def malform(self, case: Case) -> bool:
        """Puts what is no job."""

        def put() -> None:
            self._patience.ledger.put(case)
            self._plain.put_garbage(case)

        return self._patience.until(lambda: self._tried(put))

    def _called(self, case: Case) -> bool:
        job = Job(case.op, list(case.texts), k=K)
        reply = self._asked(case, "call", lambda: self._client.call(job, lane=case.lane))
        return reply if isinstance(reply, bool) else self._answered(case, reply)

    def _submitted(self, case: Case, ids: list[str]) -> bool:
        handle = self._asked(case, "submit", lambda: self._client.submit(case.op, case.texts, lane=case.lane, k=K))
        if isinstance(handle, bool):
            return handle
        ids.append(handle.id)
        self._patience.ledger.accept(case, handle.id)
        return True

    def _fetched(self, case: Case, job_id: str) -> bool:
        reply = self._asked(case, "fetch", lambda: self._client.job(job_id).result(5))
        return reply if isinstance(reply, bool) else self._answered(case, reply)

    def _answered(self, case: Case, reply: Any) -> bool:
        self._patience.ledger.answer(case, self._patience.answers.wrong_reply(case, reply))
        return True

    def _asked(self, case: Case, what: str, ask: Callable[[], Any]) -> Any:
        """What was asked for, or whether this was the end of the case."""
        try:
            return ask()
        except UnknownJob as error:
            return self._patience.lost(case, str(error))
        except ShoalError as error:
            return self._patience.refused(case, f"{what}: {error.code}", error.code, error.message)

    def _tried(self, ask: Callable[[], object]) -> bool:
        """Whether it came through."""
        try:
            ask()
        except redis.RedisError as error:
            self._patience.ledger.refuse(f"plain: {type(error).__name__}")
            return False
        return True

    def _read(self, case: Case, look: Callable[[], list[dict[str, Any]]]) -> bool:
        found: list[dict[str, Any]] = []
        if not self._tried(lambda: found.extend(look())) or not found:
            return False
        reply = found[0]
        if error := reply.get("error"):
            return self._patience.refused(case, f"plain: {error['code']}", error["code"], error["message"])
        self._patience.ledger.answer(case, self._patience.answers.wrong(case, _content(reply)))
        return True


def _content(reply: dict[str, Any]) -> Any:
    """The vectors or hits of a reply, as docs/protocol.md has them."""
    vectors = reply.get("vectors")
    return reply["hits"] if vectors is None else np.frombuffer(vectors["data"], "<f4").reshape(vectors["shape"])
