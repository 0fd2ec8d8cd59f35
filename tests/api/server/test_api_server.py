"""`shoal api` as a process of its own."""

import asyncio
import json
import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from api_process import ApiProcess, StartApi
from api_stub import COUNTERS, MakeApp, StubWorker, vector_of
from conftest import free_port, wait_until
from process import run
from prometheus_client.parser import text_string_to_metric_families
from queues import Queue

from shoal.process.address import find_addresses
from shoal.settings import Settings
from shoal_api.server import server as server_module
from shoal_api.server.rsgi import RsgiServer

pytest_plugins = ["api_fixtures"]


@pytest.mark.usefixtures("stub")
class TestServing:
    def test_it_answers_on_one_connection(self, shared_api: ApiProcess) -> None:
        with closing(shared_api.connect()) as connection:
            for n in range(3):
                connection.request("POST", "/embed", json.dumps({"inputs": f"text {n}"}))
                sock, response = connection.sock, connection.getresponse()
                assert json.loads(response.read()) == [pytest.approx(vector_of(f"text {n}").tolist())]
                assert connection.sock is sock

    def test_it_answers_many_at_a_time(self, shared_api: ApiProcess) -> None:
        with ThreadPoolExecutor(64) as pool:
            bodies = [{"inputs": f"text {n}"} for n in range(300)]
            answers = list(pool.map(lambda body: shared_api.ask("POST", "/embed", body)[:2], bodies))
        assert answers == [(200, [pytest.approx(vector_of(f"text {n}").tolist())]) for n in range(300)]

    @pytest.mark.parametrize("api_processes", [1, pytest.param(2, marks=pytest.mark.wide)])
    def test_the_host_may_be_a_name_of_several_addresses(self, start_api: StartApi, api_processes: int) -> None:
        server = start_api(host="localhost", api_processes=api_processes)
        addresses = find_addresses("localhost", free_port())
        assert len(psutil.Process(server.process.pid).children()) == api_processes * len(addresses)
        for address in addresses:
            wait_until(ApiProcess(server.process, server.port, address).listens)
        assert server.process.output.count("listening on") == len(addresses)
        assert server.process.terminate() == 0

    def test_its_log_has_no_line_for_a_request(self, start_api: StartApi) -> None:
        server = start_api()
        server.ask("POST", "/embed", b'{"inputs": "a secret text"}')
        server.ask("POST", "/embed", b'{"inputs": "a secret text"')
        lines = server.process.output.splitlines()
        assert len(lines) == 1
        assert f"listening on http://127.0.0.1:{server.port}" in lines[0]


class TestStopping:
    @pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.wide)])
    def test_requests_under_way_are_answered_and_idle_connections_do_not_delay_a_stop(
        self, start_api: StartApi, stub: StubWorker, settings: Settings, number: signal.Signals
    ) -> None:
        server, queue = start_api(), Queue.connect(settings.redis_url, settings.keys)
        stub.pause()
        with closing(server.connect()) as idle, ThreadPoolExecutor(1) as pool:
            idle.request("GET", "/health")
            idle.getresponse().read()
            waiting = pool.submit(server.ask, "POST", "/embed", b'{"inputs": "a"}')
            wait_until(lambda: queue.backlog()["interactive"])
            server.process.send(number)
            wait_until(lambda: not server.listens())
            stub.resume()
            answer = waiting.result()
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
        assert server.process.wait() == 0
        queue.close()

    def test_nothing_is_left_when_it_is_killed(self, start_api: StartApi) -> None:
        server = start_api()
        assert server.ask("GET", "/health")[0] == 200
        server.process.kill()
        wait_until(lambda: not server.listens())


class Several:
    """A server of several processes, seen from outside."""

    def __init__(self, server: ApiProcess):
        self.server = server
        self._process = psutil.Process(server.process.pid)

    def pids(self) -> set[int]:
        """The processes that serve."""
        return {child.pid for child in self._process.children()}

    def counts(self) -> list[Path]:
        """The files in which the processes count requests: one for each process that has answered a request."""
        names: list[str] = []
        for child in self._process.children():
            with suppress(psutil.Error):  # the process is just ending
                names += [file.path for file in child.open_files()]
        return [Path(name) for name in names if "/histogram_" in name]

    def have_answered(self) -> set[int]:
        """The processes that serve now and have answered requests."""
        return {int(file.stem.rpartition("_")[2]) for file in self.counts()}

    def scrape(self, sample_name: str, **labels: str) -> float:
        """The value of the metric with these labels, from any of the processes."""
        with closing(self.server.connect()) as connection:
            connection.request("GET", "/metrics")
            families = text_string_to_metric_families(connection.getresponse().read().decode())
        samples = [sample for family in families for sample in family.samples if sample.name == sample_name]
        (found,) = [sample.value for sample in samples if labels.items() <= sample.labels.items()]
        return found

    def num_counted(self) -> float:
        """Return the number of embeds that the metrics have."""
        return self.scrape("shoal_http_request_seconds_count", route="/embed")

    def resident_bytes(self) -> int:
        """The resident memory of all processes."""
        return sum(int(child.memory_info().rss) for child in self._process.children())


@pytest.mark.usefixtures("stub")
class TestSeveralProcesses:
    @pytest.fixture
    def several(self, start_api: StartApi) -> Several:
        """Return a server of two processes, each of which has answered."""
        several = Several(start_api(api_processes=2))
        wait_until(lambda: embed(several) and len(several.have_answered()) == 2)
        return several

    def test_processes_share_the_requests_count_together_and_stop_together(self, several: Several) -> None:
        pids, folder = several.pids(), several.counts()[0].parent
        assert several.have_answered() == pids
        before = several.num_counted()
        assert [embed(several) for _ in range(50)] == [True] * 50
        assert {several.num_counted() for _ in range(20)} == {before + 50}
        assert {several.scrape("shoal_worker_jobs_total") for _ in range(20)} == {COUNTERS["jobs"]}
        (folder / f"counter_{os.getpid()}.db").write_bytes(bytes(8))  # as if this process had the number of a dead one
        sizes = [several.resident_bytes(), several.scrape("process_resident_memory_bytes"), several.resident_bytes()]
        assert 0.9 * min(sizes[0], sizes[2]) <= sizes[1] <= 1.1 * max(sizes[0], sizes[2])
        assert several.scrape("shoal_build_info") == 1
        assert several.scrape("process_start_time_seconds") < time.time() + 1  # of the first
        assert several.server.process.terminate() == 0
        assert not folder.exists()
        assert not any(map(is_running, pids))

    @pytest.mark.wide
    def test_a_process_that_dies_is_replaced_and_all_end_with_their_parent(self, several: Several) -> None:
        before, dead = several.num_counted(), min(several.pids())
        psutil.Process(dead).kill()
        wait_until(lambda: dead not in several.pids() and len(several.pids()) == 2)
        wait_until(lambda: embed(several) and several.pids() <= several.have_answered())
        assert several.num_counted() > before
        pids, folder = several.pids(), several.counts()[0].parent
        several.server.process.kill()
        wait_until(lambda: not any(map(is_running, pids)))
        shutil.rmtree(folder)  # a killed process cannot delete its folder


def is_running(pid: int) -> bool:
    """Return False for a process that has ended, even if its new parent never asks for its exit code."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def embed(several: Several) -> bool:
    """Return True if a request on a connection of its own is answered; the system chooses the process."""
    try:
        return several.server.ask("POST", "/embed", b'{"inputs": "a"}')[0] == 200
    except OSError:  # the process died with it
        return False


class TestRefusingToStart:
    def test_a_port_in_use_is_named(self, start_api: StartApi) -> None:
        server = start_api()
        result = run("api", "--port", server.port)
        assert result.returncode == 1
        assert f"127.0.0.1:{server.port} is taken" in result.stderr
        assert result.stderr.endswith("[port_in_use]\n")

    def test_an_impossible_address_is_named(self) -> None:
        for flags, words in (
            (["--host", "203.0.113.1"], "cannot listen on 203.0.113.1:"),
            (["--host", "no such host"], "cannot listen on no such host:"),
            (["--port", "70000"], "port is 70000: it takes"),
        ):
            result = run("api", *flags)
            assert result.returncode == 1
            assert words in result.stderr
            assert result.stderr.endswith("[bad_setting]\n")

    @pytest.mark.parametrize(
        "url", ["nonsense", "redis://127.0.0.1:1/word", "redis://a..b:1", "redis+cluster://127.0.0.1:1,a..b:1"]
    )
    def test_a_redis_url_that_cannot_be_read_is_named(self, url: str) -> None:
        result = run("api", "--port", free_port(), "--redis-url", url)
        assert result.returncode == 1
        assert "the Redis URL cannot be read" in result.stderr


def test_a_server_stops_though_its_connections_cannot_be_looked_at(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, stopping = threading.Event(), threading.Event()
    monkeypatch.setattr(server_module, "drain", Mock(side_effect=OSError("no such file")))
    monkeypatch.setattr(server_module, "_end", ended.set)
    app, loop = make_app(), asyncio.new_event_loop()
    server = RsgiServer(app, free_port(), 1.0)
    server.__rsgi_init__(loop)
    loop.call_soon(lambda: loop.run_in_executor(None, server_module._stop, server, free_port(), stopping, bool))
    with closing(loop):
        while not ended.is_set():
            loop.call_later(0.01, loop.stop)
            loop.run_forever()
        loop.run_until_complete(loop.shutdown_default_executor())
    assert stopping.is_set()
