"""Requests that wait without a thread while their client holds its share of them."""

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest
from api_stub import MakeApp, StubWorker
from conftest import PATIENCE_S, free_port, wait_until
from process import Process
from werkzeug.test import EnvironBuilder

from shoal.errors import Overloaded
from shoal.settings import Settings
from shoal_api.access.access_control import THREAD_DEMAND
from shoal_api.access.body_reads import BodyReads
from shoal_api.access.thread_quota import MAX_VIEWERS, ThreadQuotas
from shoal_api.access.waiting_requests import MAX_WAITING, ThreadDemand, WaitingRequests
from shoal_api.context import Context
from shoal_api.request import JsonRequest
from shoal_api.server.calls import MAX_WAITING_BYTES, Calls

pytest_plugins = ["api_fixtures"]


def demand(client: str, num_threads: int = 1) -> ThreadDemand:
    """Return the demand of a request."""
    return ThreadDemand(client, num_threads, 0.0)


def entered(waiting: WaitingRequests[str], client: str, count: int, num_threads: int = 1) -> list[ThreadDemand]:
    """Let requests in, named after their client and number; return the demands of those that may run."""
    demands = [demand(client, num_threads) for _ in range(count)]
    return [one for n, one in enumerate(demands) if waiting.enter(one, f"{client}{n}")]


class TestWaiting:
    def test_requests_beyond_a_clients_share_run_in_order(self) -> None:
        waiting = WaitingRequests[str](ThreadQuotas(8))
        running = entered(waiting, "a", 12)
        assert (len(running), len(waiting)) == (7, 5)
        found = []
        while running:
            for one, name in waiting.leave(running.pop(0)):
                running.append(one)
                found.append(name)
        assert found == ["a7", "a8", "a9", "a10", "a11"]
        assert len(waiting) == 0

    def test_another_client_runs_at_once(self) -> None:
        waiting = WaitingRequests[str](ThreadQuotas(64))
        entered(waiting, "a", 1_000)
        assert waiting.try_enter(demand("b"))

    def test_a_request_does_not_overtake_one_of_its_client_that_waits(self) -> None:
        quotas = ThreadQuotas(64)
        waiting = WaitingRequests[str](quotas)
        (running,) = entered(waiting, "a", 1, 50)
        assert not waiting.enter(demand("a", 50), "large")
        assert not waiting.try_enter(demand("a"))
        assert not waiting.enter(demand("a"), "small")
        assert [name for _, name in waiting.leave(running)] == ["large", "small"]

    def test_a_large_request_that_ends_lets_several_small_ones_run(self) -> None:
        waiting = WaitingRequests[str](ThreadQuotas(8))
        (running,) = entered(waiting, "a", 1, 7)
        assert entered(waiting, "a", 9) == []
        assert len(waiting.leave(running)) == 7

    def test_clients_that_wait_take_turns(self) -> None:
        waiting = WaitingRequests[str](ThreadQuotas(8))
        running = entered(waiting, "greedy", 7)
        entered(waiting, "a", 1)
        for client in ("a", "b"):
            entered(waiting, client, 3)
        names = [name[0] for one in running for _, name in waiting.leave(one)]
        assert sorted(names[:4]) == ["a", "a", "b", "b"]

    def test_so_many_of_a_client_may_wait(self) -> None:
        waiting = WaitingRequests[str](ThreadQuotas(8))
        entered(waiting, "a", 7 + MAX_WAITING)
        with pytest.raises(Overloaded, match="2,048 requests of this client wait"):
            waiting.enter(demand("a"), "one more")
        assert len(waiting) == MAX_WAITING
        waiting.enter(demand("b"), "b")


class TestWaitedTime:
    def test_it_is_counted(self) -> None:
        waiting = WaitingRequests[str](ThreadQuotas(8))
        running = entered(waiting, "a", 7)
        waiting.enter(ThreadDemand("a", 1, time.perf_counter() - 10.0), "later")
        ((later, _),) = waiting.leave(running[0])
        assert later.waited_s >= 10.0
        assert running[0].waited_s == 0.0

    @pytest.mark.parametrize(
        ("waited_s", "status", "message"),
        [(1e6, 429, "has waited 1000000.0 s"), (1e6 - 0.1, 504, "no answer within 0.1")],
    )
    def test_it_counts_as_wait_for_the_answer(
        self, make_app: MakeApp, stub: StubWorker, waited_s: float, status: int, message: str
    ) -> None:
        stub.pause()
        api = make_app(request_timeout_s=1e6).test_client()
        environ = {THREAD_DEMAND: ThreadDemand("a", 1, 0.0, waited_s=waited_s)}
        response = api.post("/embed", json={"inputs": "text"}, environ_overrides=environ)
        assert (response.status_code, message in response.text) == (status, True), response.text


class TestBodyReads:
    def test_a_client_whose_bodies_do_not_arrive_holds_a_part_of_the_threads(self) -> None:
        reads = BodyReads(8)
        with ExitStack() as slow:
            for _ in range(7):
                slow.enter_context(reads.reading("slow")).started_s -= 10.0
            with pytest.raises(Overloaded, match="do not arrive"):
                slow.enter_context(reads.reading("slow", beside_slow=False))
            with reads.reading("quick"):
                pass
        with reads.reading("slow"):
            pass

    def test_the_newest_request_beside_slow_bodies_is_let_in_when_one_ends(self) -> None:
        reads, entered = BodyReads(1, max_wait_s=PATIENCE_S), threading.Event()

        def enter() -> None:
            with reads.reading("slow"):
                entered.set()

        with ThreadPoolExecutor(2) as pool:
            with reads.reading("slow") as slow:
                slow.started_s -= 2 * PATIENCE_S
                older = pool.submit(enter)
                wait_until(lambda: reads._clients["slow"].waiting)
                newer = pool.submit(enter)
                assert isinstance(older.exception(), Overloaded)
                assert not entered.is_set()
            newer.result()


class Api:
    """`shoal api` with few threads, and requests to it."""

    def __init__(self, process: Process, port: int):
        self.process = process
        self.port = port

    def embed(self, text: str, source: str = "127.0.0.1") -> int:
        """Return the status of the answer to a request to embed a text."""
        return self.ask(text, source)[0]

    def ask(self, text: str, source: str = "127.0.0.1") -> tuple[int, str]:
        """Return the status of the answer to a request to embed a text, and its error's message, if it has one."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S, source_address=(source, 0))
        connection.request("POST", "/embed", json.dumps({"inputs": text}))
        response = connection.getresponse()
        body = json.loads(response.read())
        connection.close()
        return int(response.status), body["error"]["message"] if isinstance(body, dict) else ""

    def begin(self) -> socket.socket:
        """Return a connection on which a request was sent without its body."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        connection.sendall(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        return connection

    def num_threads(self) -> int:
        """Return the number of threads of the process that serves."""
        return int(psutil.Process(self.process.pid).children()[0].num_threads())

    def num_connections(self) -> int:
        """Return the number of connections that the process has taken from clients."""
        connections = psutil.Process(self.process.pid).children()[0].net_connections("tcp")
        return sum(one.laddr.port == self.port and one.status == psutil.CONN_ESTABLISHED for one in connections)

    def listens(self) -> bool:
        """Return True if the server takes connections."""
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except ConnectionRefusedError:
            return False
        return True


StartApi = Callable[..., Api]


@pytest.fixture
def start_api(settings: Settings, tmp_path: Path) -> Iterator[StartApi]:
    """Return a function that starts servers on free ports."""
    with ExitStack() as stack:

        def start(**changes: Any) -> Api:
            port = free_port()
            where = {"redis_url": settings.redis_url, "key_prefix": settings.key_prefix, "pool": settings.pool}
            api = Api(stack.enter_context(Process(tmp_path / "log", "api", "--port", port, **where | changes)), port)
            wait_until(api.listens)
            return api

        yield start


class TestCalls:
    def test_requests_that_may_run_are_answered_where_the_system_grants_no_thread(
        self, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        access = Context.of(make_app(api_threads=8)).access
        answered: list[str] = []

        def run(responder: Any, environ: dict[str, Any]) -> None:
            if responder == "first":
                access.reserve(JsonRequest(environ), 6.0)  # so it counts for seven threads, and frees them all at once
                for n in range(5):
                    calls(f"next {n}", request())
            answered.append(responder)

        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        def request() -> dict[str, Any]:
            return EnvironBuilder(path="/embed", method="POST", data=b"{}").get_environ()

        calls: Any = Calls(run, access)
        with ThreadPoolExecutor(1) as pool:  # as the thread's policy changes
            pool.submit(int).result()
            monkeypatch.setattr(threading.Thread, "start", start)
            pool.submit(calls, "first", request()).result()
        assert answered == ["first", *(f"next {n}" for n in range(5))]
        assert access.num_unanswered() == 0


class TestServer:
    def test_requests_of_one_address_wait_while_another_is_answered(
        self, start_api: StartApi, stub: StubWorker
    ) -> None:
        api = start_api(api_threads=16)
        num_threads = api.num_threads()
        stub.pause()
        with ThreadPoolExecutor(101) as pool:
            asking = [pool.submit(api.embed, f"text {n}") for n in range(100)]
            wait_until(lambda: stub.queue.backlog()["interactive"] == 14)
            other = pool.submit(api.embed, "text", "127.0.0.2")
            wait_until(lambda: stub.queue.backlog()["interactive"] == 15)
            assert api.num_threads() - num_threads <= 16 + 2 * 3 + MAX_VIEWERS
            stub.resume()
            assert other.result() == 200
            assert {one.result() for one in asking} == {200}

    def test_a_server_that_stops_answers_requests_that_wait(self, start_api: StartApi, stub: StubWorker) -> None:
        api = start_api(api_threads=8)
        stub.pause()
        with ThreadPoolExecutor(40) as pool:
            asking = [pool.submit(api.embed, f"text {n}") for n in range(40)]
            wait_until(lambda: api.num_connections() == 40)
            api.process.send(signal.SIGTERM)
            stub.resume()
            assert {one.result() for one in asking} == {200}
        assert api.process.wait() == 0

    @pytest.mark.usefixtures("stub")
    def test_slow_bodies_of_one_address_hold_up_no_other(self, start_api: StartApi) -> None:
        api = start_api(api_threads=64, receive_timeout_s=3_600)
        with ExitStack() as slow:
            for _ in range(200):
                slow.enter_context(api.begin())
            assert [api.embed("text", "127.0.0.2") for _ in range(20)] == [200] * 20

    def test_a_large_body_is_refused_and_does_not_wait(self, start_api: StartApi, stub: StubWorker) -> None:
        api = start_api(api_threads=8)
        stub.pause()
        with ThreadPoolExecutor(7) as pool:
            asking = [pool.submit(api.embed, f"text {n}") for n in range(7)]
            wait_until(lambda: stub.queue.backlog()["interactive"] == 7)
            status, message = api.ask("x" * MAX_WAITING_BYTES)
            assert status == 429
            assert "this one cannot wait: its body has over 32,768 bytes" in message
            stub.resume()
            assert {one.result() for one in asking} == {200}

    def test_a_server_of_one_thread_is_alive_while_it_answers(self, start_api: StartApi, stub: StubWorker) -> None:
        api = start_api(api_threads=1)
        stub.pause()
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(api.embed, "text")
            wait_until(lambda: stub.queue.backlog()["interactive"] == 1)
            health = HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE_S)
            health.request("GET", "/health")
            assert health.getresponse().status == 200
            health.close()
            stub.resume()
            assert asking.result() == 200
