"""Servers and workers that are stopped or replaced under load lose no request, whatever the moment and the signals."""

import json
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from api_process import StartApi
from api_stub import StubWorker
from callers import Callers
from conftest import PATIENCE_S, free_port, wait_until
from http_servers import listens
from process import Process
from queues import queue_of

from shoal import Client
from shoal.contract.keys import Keys
from shoal.settings import Settings
from shoal_api.server import shutdown
from shoal_api.server.shutdown import HAS_TCP_INFO

pytest_plugins = ["api_fixtures"]

NUM_CALLERS = 16

#: The signals that stop an API. Further signals change nothing.
TERM, MANY = [signal.SIGTERM], [signal.SIGINT, signal.SIGTERM] * 3


def assert_all_answered(callers: Callers) -> None:
    """Check that every request has an answer that is not an error."""
    assert callers.losses == []
    assert set(callers.outcomes) == {"200"}


@pytest.mark.usefixtures("stub")
class TestApi:
    @pytest.mark.parametrize(
        ("num_processes", "keeps", "numbers"),
        [
            (1, False, TERM),
            *(
                pytest.param(*case, marks=pytest.mark.wide)
                for case in ((1, False, MANY), (1, True, TERM), (2, True, TERM))
            ),
        ],
    )
    def test_a_stopped_api_answers_every_request_that_was_sent(
        self, start_api: StartApi, num_processes: int, keeps: bool, numbers: list[signal.Signals]
    ) -> None:
        api = start_api(api_processes=num_processes)
        with Callers(api.port, NUM_CALLERS, keeps=keeps) as callers:
            wait_until(lambda: callers.num_answered > 5 * NUM_CALLERS)
            for number in numbers:
                api.process.send(number)
            assert api.process.wait() == 0
            callers.join()
        assert_all_answered(callers)

    def test_answers_of_a_stopping_api_announce_the_end_of_the_connection(self, start_api: StartApi) -> None:
        api = start_api()
        with closing(api.send()) as kept:
            assert "connection: close" not in ask_ready(kept)
            api.process.send(signal.SIGTERM)
            asked = (ask_ready(kept) for _ in range(100_000))  # one after the other, until the server drains
            assert any("connection: close" in head for head in asked)
            assert kept.recv(1) == b""
        assert api.process.wait() == 0

    @pytest.mark.wide
    def test_a_signal_during_the_start_ends_the_api(self, settings: Settings, tmp_path: Path) -> None:
        where = {"redis_url": settings.redis_url, "key_prefix": settings.key_prefix, "pool": settings.pool}
        with Process(tmp_path / "api.log", "api", "--port", free_port(), **where) as api:
            wait_until(lambda: "listening on" in api.output)  # the API's server process has not started yet
            assert api.terminate() == 0
            assert "Traceback" not in api.output


def ask_ready(connection: socket.socket) -> str:
    """Send one request, and return its response in lower case."""
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return connection.recv(65_536).decode().lower()


@pytest.mark.skipif(not HAS_TCP_INFO, reason="the system does not report the state of a connection")
class TestDrain:
    @pytest.fixture
    def listener(self) -> Iterator[socket.socket]:
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            yield listener

    @pytest.fixture
    def drain_with(self, listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """Return a function that drains the listener's port, and calls one of `steps` in place of each pause."""

        def drain_with(*steps: Callable[[], object], idle_s: float, drain_s: float = PATIENCE_S) -> None:
            left = iter(steps)
            monkeypatch.setattr(shutdown, "DRAIN_S", drain_s)
            monkeypatch.setattr(shutdown, "IDLE_S", idle_s)
            monkeypatch.setattr("shoal_api.server.shutdown.time.sleep", lambda _: next(left)())
            shutdown.drain(listener.getsockname()[1])
            assert next(left, None) is None

        return drain_with

    def test_a_drain_refuses_new_connections(self, listener: socket.socket, drain_with: Callable[..., None]) -> None:
        client = socket.create_connection(listener.getsockname())
        accepted: list[socket.socket] = []
        outcomes: list[bool] = []
        drain_with(
            lambda: outcomes.append(listens(listener.getsockname()[1])),
            lambda: accepted.append(listener.accept()[0]),
            lambda: None,
            client.close,
            lambda: accepted.pop().close(),
            idle_s=PATIENCE_S,
        )
        assert outcomes == [False]

    def test_a_drain_waits_only_for_requests(self, listener: socket.socket, drain_with: Callable[..., None]) -> None:
        with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as accepted:
            drain_with(lambda: client.sendall(b"a request"), lambda: accepted.recv(100), idle_s=-1)
            drain_with(idle_s=-1)
            client.sendall(b"a request")
            wait_until(lambda: select.select([accepted], [], [], 0)[0])
            drain_with(idle_s=-1, drain_s=0)
            drain_with(lambda: accepted.recv(100), idle_s=-1)


@pytest.mark.wide
class TestWorkers:
    @pytest.fixture
    def start_worker(
        self, home: Path, tiny_model: Path, tiny_source: Path, tmp_path: Path, keys: Keys, redis_url: str
    ) -> Callable[[], Process]:
        """Return a function that starts a worker of the test's pool with the tiny model."""
        where = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool, "home": home}
        usual = {"model": tiny_source, "precision": "f32", "threads": 1}
        return lambda: Process(tmp_path / "worker.log", "worker", **where | usual)

    def test_a_rolling_restart(self, start_api: StartApi, start_worker: Callable[[], Process], client: Client) -> None:
        api = start_api()
        workers = [start_worker() for _ in range(3)]
        try:
            wait_until(lambda: len(client.pool.ready()) == 3)
            with Callers(api.port, NUM_CALLERS) as callers:
                for n in range(3):
                    answered = callers.num_answered
                    wait_until(lambda before=answered: callers.num_answered > before + NUM_CALLERS)  # type: ignore[misc]
                    assert workers[n].terminate() == 0
                    workers[n] = start_worker()
                    wait_until(lambda: len(client.pool.ready()) == 3)
            assert_all_answered(callers)
        finally:
            for worker in workers:
                worker.terminate()


class TestDisconnects:
    def test_a_disconnect_withdraws_the_job(self, start_api: StartApi, stub: StubWorker, client: Client) -> None:
        api = start_api()
        stub.pause()
        gone, stays = (api.send() for _ in range(2))
        with closing(gone), closing(stays):
            send(gone, "one text")
            wait_until(lambda: queue_of(client).backlog()["interactive"] == 1)
            gone.close()
            wait_until(lambda: queue_of(client).backlog()["interactive"] == 0)
            send(stays, "another text")
            wait_until(lambda: queue_of(client).backlog()["interactive"] == 1)
            assert not select.select([stays], [], [], 2.5)[0]  # two looks for disconnects later, the job still waits
            assert queue_of(client).backlog()["interactive"] == 1
            stub.resume()
            assert stays.recv(65_536).startswith(b"HTTP/1.1 200")


def send(connection: socket.socket, text: str) -> None:
    body = json.dumps({"inputs": text}).encode()
    connection.sendall(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
