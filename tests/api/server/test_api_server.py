"""`shoal api` as a process of its own."""

import asyncio
import json
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from api_process import ApiProcess, StartApi
from api_stub import COUNTERS, MakeApp, StubWorker, vector_of
from conftest import free_port, wait_until
from process import run
from prometheus_client.parser import text_string_to_metric_families
from queues import Queue

from shoal.process.listen_address import find_addresses
from shoal.settings import Settings
from shoal_api.server import server as server_module
from shoal_api.server.rsgi import RsgiServer

pytest_plugins = ["api_fixtures"]


@pytest.mark.usefixtures("stub")
class TestServing:
    def test_it_answers_many_requests_at_a_time_and_several_on_one_connection(self, shared_api: ApiProcess) -> None:
        with closing(shared_api.connect()) as connection:
            for n in range(3):
                connection.request("POST", "/embed", json.dumps({"inputs": f"text {n}"}))
                sock, response = connection.sock, connection.getresponse()
                assert json.loads(response.read()) == [pytest.approx(vector_of(f"text {n}").tolist())]
                assert connection.sock is sock
        with ThreadPoolExecutor(64) as pool:
            answers = pool.map(lambda n: shared_api.ask("POST", "/embed", {"inputs": f"text {n}"})[:2], range(300))
            assert [*answers] == [(200, [pytest.approx(vector_of(f"text {n}").tolist())]) for n in range(300)]

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


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.wide)])
def test_requests_under_way_are_answered_and_idle_connections_do_not_delay_a_stop(
    start_api: StartApi, stub: StubWorker, settings: Settings, number: signal.Signals
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


def pids_of(server: ApiProcess) -> set[int]:
    """Return the processes that serve."""
    return {child.pid for child in psutil.Process(server.process.pid).children()}


def counts_of(server: ApiProcess) -> dict[int, Path]:
    """Return the file in which each process that has answered a request counts requests."""
    names: list[str] = []
    for pid in pids_of(server):
        with suppress(psutil.Error):  # the process is ending now
            names += [file.path for file in psutil.Process(pid).open_files()]
    return {int(Path(name).stem.rpartition("_")[2]): Path(name) for name in names if "/histogram_" in name}


def scrape(server: ApiProcess, sample_name: str, **labels: str) -> float:
    """Return the value of the metric with these labels, from any of the processes."""
    families = text_string_to_metric_families(server.ask("GET", "/metrics").body.decode())
    samples = [sample for family in families for sample in family.samples if sample.name == sample_name]
    (found,) = [sample.value for sample in samples if labels.items() <= sample.labels.items()]
    return found


def num_counted(server: ApiProcess) -> float:
    """Return the number of embeds that the metrics have."""
    return scrape(server, "shoal_http_request_seconds_count", route="/embed")


def embed(server: ApiProcess) -> bool:
    """Return True if a request on a connection of its own is answered; the system chooses the process."""
    with suppress(OSError):  # the process died with the request
        return server.ask("POST", "/embed", b'{"inputs": "a"}').status == 200
    return False


def is_running(pid: int) -> bool:
    """Return False for a process that has ended, even if its new parent never asks for its exit code."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


@pytest.mark.usefixtures("stub")
class TestSeveralProcesses:
    @pytest.fixture
    def server(self, start_api: StartApi) -> ApiProcess:
        """Return a server of two processes, each of which has answered."""
        server = start_api(api_processes=2)
        wait_until(lambda: embed(server) and len(counts_of(server)) == 2)
        return server

    def test_processes_share_the_requests_count_together_and_stop_together(self, server: ApiProcess) -> None:
        pids, folder = pids_of(server), next(iter(counts_of(server).values())).parent
        assert counts_of(server).keys() == pids
        before = num_counted(server)
        assert [embed(server) for _ in range(50)] == [True] * 50
        assert {num_counted(server) for _ in range(20)} == {before + 50}
        assert {scrape(server, "shoal_worker_jobs_total") for _ in range(20)} == {COUNTERS["jobs"]}
        assert scrape(server, "shoal_build_info") == 1
        assert server.process.terminate() == 0
        assert not folder.exists()
        assert not any(map(is_running, pids))

    @pytest.mark.wide
    def test_a_process_that_dies_is_replaced_and_all_end_with_their_parent(self, server: ApiProcess) -> None:
        before, dead = num_counted(server), min(pids_of(server))
        psutil.Process(dead).kill()
        wait_until(lambda: dead not in pids_of(server) and len(pids_of(server)) == 2)
        wait_until(lambda: embed(server) and pids_of(server) <= counts_of(server).keys())
        assert num_counted(server) > before
        pids, folder = pids_of(server), next(iter(counts_of(server).values())).parent
        server.process.kill()
        wait_until(lambda: not any(map(is_running, pids)))
        shutil.rmtree(folder)  # a killed process cannot delete its folder


URLS = ("nonsense", "redis://127.0.0.1:1/word", "redis://a..b:1", "redis+cluster://127.0.0.1:1,a..b:1")


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("host", "203.0.113.1", "cannot listen on 203.0.113.1:"),
        ("host", "no such host", "cannot listen on no such host:"),
        ("port", 70_000, "port is 70000: it takes"),
        *(("redis_url", url, "the Redis URL cannot be read") for url in URLS),
    ],
)
def test_a_server_that_cannot_start_says_why(flag: str, value: object, words: str) -> None:
    settings: dict[str, Any] = {"port": free_port(), flag: value}
    result = run("api", **settings)
    assert (result.returncode, words in result.stderr) == (1, True)
    assert result.stderr.endswith(("[bad_setting]\n", "[unavailable]\n"))
    assert "listening" not in result.stderr


def test_a_port_in_use_is_named(start_api: StartApi) -> None:
    result = run("api", "--port", port := start_api().port)
    assert (result.returncode, f"127.0.0.1:{port} is taken" in result.stderr) == (1, True)
    assert result.stderr.endswith("[port_in_use]\n")


def test_a_server_stops_even_if_it_cannot_see_its_connections(
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
