"""The circuit breaker: if Redis is killed or hangs, the API says so within a second, and later goes on by itself."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from api_process import ApiProcess
from api_stub import StubWorker
from conftest import RedisServer, free_port, repeating, wait_until
from process import Process
from redis.backoff import NoBackoff
from redis.retry import Retry

from shoal.broker.circuit_breaker import TRY_EVERY_S, TRY_WITHIN_S, WATCHED, CircuitBreaker
from shoal.broker.connections import ANSWER_S
from shoal.contract.keys import Keys
from shoal.errors import ShoalError

#: Time limit of a request, in seconds. It is so long that no request of these tests reaches it.
GIVEN_S = 3_600

EMBED = ("POST", "/embed", {"inputs": "storm"})
ROUTES = [
    EMBED,
    ("POST", "/search", {"queries": "storm"}),
    ("POST", "/v1/jobs", {"op": "embed", "inputs": "storm"}),
    ("GET", "/v1/jobs/{id}", None),
    ("GET", "/v1/jobs/{id}/result?wait=60", None),
    ("DELETE", "/v1/jobs/{id}", None),
    ("GET", "/ready", None),
    ("GET", "/info", None),
    ("GET", "/v1/indexes", None),
]


class Api(ApiProcess):
    """`shoal api` whose Redis can be killed, or hung: then Redis accepts connections and answers nothing."""

    def __init__(self, process: Process, port: int, redis_server: RedisServer):
        super().__init__(process, port)
        self._redis = redis_server

    def answers(self) -> bool:
        try:
            return self.ask(*EMBED).status == 200
        except OSError:
            return False

    def lose(self, how: str) -> None:
        self._redis.stop(signal.SIGKILL) if how == "killed" else self._redis.send(signal.SIGSTOP)

    def regain(self, how: str) -> None:
        self._redis.start() if how == "killed" else self._redis.send(signal.SIGCONT)


@pytest.fixture
def stub(own_redis: RedisServer) -> Iterator[StubWorker]:
    stub = StubWorker(own_redis.url, Keys())
    stub.start()

    def announce() -> None:
        with suppress(ShoalError):
            stub.announce()

    with repeating(announce, pause_s=0.2):
        yield stub
    stub.stop()


@pytest.fixture
def api(own_redis: RedisServer, stub: StubWorker, tmp_path: Path) -> Iterator[Api]:
    """Return an API that answers, with the default time limits for Redis."""
    port = free_port()
    settings = {"redis_url": own_redis.plain_url, "cache_mb": 0, "request_timeout_s": GIVEN_S}
    with Process(tmp_path / "api.log", "api", "--port", port, **settings) as process:
        api = Api(process, port, own_redis)
        wait_until(api.answers)
        yield api


@pytest.mark.parametrize("how", ["killed", pytest.param("hung", marks=pytest.mark.wide)])
def test_every_route_reports_the_outage_and_goes_on_by_itself(api: Api, how: str) -> None:
    job_id = api.ask("POST", "/v1/jobs", {"op": "embed", "inputs": "storm"})[1]["id"]
    api.lose(how)
    for method, path, body in ROUTES:
        answer = api.ask(method, path.format(id=job_id), body)
        assert (answer.status, answer.body["error"]["code"]) == (503, "unavailable"), path
        assert "Redis does not answer" in answer.body["error"]["message"]
    assert api.ask("GET", "/health")[0] == 200
    assert b"shoal_redis_up 0.0" in api.ask("GET", "/metrics").body
    api.regain(how)
    wait_until(api.answers)
    wait_until(lambda: api.ask("GET", "/ready")[0] == 200)  # the stub announces itself anew
    assert b"shoal_redis_up 1.0" in api.ask("GET", "/metrics").body


def test_requests_that_wait_are_answered_if_redis_is_back_at_once(api: Api, stub: StubWorker) -> None:
    away_s = ANSWER_S
    while away_s >= ANSWER_S / 2:  # try again if this process itself was delayed
        wait_until(api.answers)
        stub.pause()
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(api.ask, "POST", "/embed", {"inputs": f"text {n}"}) for n in range(8)]
            wait_until(lambda: stub.queue.backlog()["interactive"] == 8)
            lost_at = time.monotonic()
            api.lose("hung")
            api.regain("hung")
            away_s = time.monotonic() - lost_at
            stub.resume()
            statuses = {one.result()[0] for one in waiting}
    assert statuses == {200}


@pytest.mark.wide
def test_outages_leave_nothing_behind(api: Api, stub: StubWorker) -> None:
    bodies = [{"inputs": f"text {n}"} for n in range(8)]

    def ask_together() -> None:
        """Have all requests under way at the same time, so that the server needs the most threads and files."""
        stub.pause()
        before = stub.queue.backlog()["interactive"]  # a killed Redis may have lost the answer to a job
        asking = [pool.submit(api.ask, "POST", "/embed", body) for body in bodies]
        wait_until(lambda: stub.queue.backlog()["interactive"] == before + len(bodies))
        stub.resume()
        assert {one.result()[0] for one in asking} == {200}

    def go_through(how: str) -> None:
        api.lose(how)
        list(pool.map(lambda body: api.ask("POST", "/embed", body), bodies))
        api.regain(how)
        wait_until(api.answers)

    with ThreadPoolExecutor(len(bodies)) as pool:
        for how in ("killed", "hung", "killed"):
            go_through(how)
        ask_together()
        threads, files = api.server.num_threads(), api.server.num_fds()
        for how in ("killed", "hung", "killed", "killed"):
            go_through(how)
        ask_together()
        wait_until(lambda: api.server.num_threads() <= threads + 2 and api.server.num_fds() <= files + 2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A monotonic clock that shows the time `now_s`, which a test sets."""
    clock = SimpleNamespace(now_s=1_000.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now_s)
    return clock


@pytest.fixture
def breaker(clock: SimpleNamespace) -> CircuitBreaker:
    return CircuitBreaker()


class TestCircuitBreaker:
    def test_silence_opens_it_if_nothing_is_answered_and_no_large_command_is_under_way(
        self, breaker: CircuitBreaker, clock: SimpleNamespace
    ) -> None:
        since = clock.now_s
        clock.now_s += 0.1
        breaker.record_success()
        breaker.record_failure(redis.TimeoutError("silence"), since, is_silence=True)
        breaker.check()  # another connection was answered meanwhile
        with suppress(redis.TimeoutError), breaker.large():
            clock.now_s += 20.0
            breaker.record_success()  # other commands are answered
            raise redis.TimeoutError("large")
        breaker.check()
        with suppress(redis.TimeoutError), breaker.large():
            breaker.record_failure(redis.TimeoutError("small"), clock.now_s, is_silence=True)
            breaker.check()
            clock.now_s += 20.0
            raise redis.TimeoutError("large")
        with pytest.raises(redis.ConnectionError, match="large"):
            breaker.check()

    def test_a_connection_that_is_refused_slowly_does_not_open_it(
        self, breaker: CircuitBreaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = chain([0.0], repeat(1.0))
        monkeypatch.setattr(time, "monotonic", lambda: next(clock))
        connection = WATCHED[redis.Connection](  # type: ignore[abstract]
            port=free_port(), retry=Retry(NoBackoff(), 0), breaker=breaker
        )
        with pytest.raises(redis.ConnectionError, match="refused"):
            connection.connect()
        breaker.check()

    def test_one_caller_at_a_time_tries(self, breaker: CircuitBreaker, clock: SimpleNamespace) -> None:
        breaker.record_failure(redis.ConnectionError("gone"), clock.now_s, is_silence=True)
        for share, every_s in ((0.99, TRY_EVERY_S), (0.02, TRY_EVERY_S), (0.9, TRY_WITHIN_S), (0.2, TRY_WITHIN_S)):
            clock.now_s += share * every_s
            with nullcontext() if share < 0.5 else pytest.raises(redis.ConnectionError, match="gone"):
                breaker.check()
        breaker.record_success()
        breaker.check()
