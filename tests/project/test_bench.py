"""The benchmarks: what they read, reckon and print."""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import pytest
from benchmarks.arrivals import generate, percentiles_ms
from benchmarks.compare import ratios
from benchmarks.server import Processes
from benchmarks.table import tables
from benchmarks.trial import Row, Trial, interleave, shown
from benchmarks.wrk import Measured
from conftest import PATIENCE_S, wait_until
from page import ROOT
from process import environment
from stack import Checkout, named

from shoal import Client
from shoal.contract.keys import Keys
from shoal.errors import BadSetting, NotReady

needs_wrk = pytest.mark.skipif(not shutil.which("wrk"), reason="wrk is not installed")

OUTPUT = """
Running 2s test @ http://127.0.0.1:40123/embed
  1 threads and 64 connections
  2451 requests in 2.01s, 9.87MB read
Requests/sec:   1219.40
measured: {"num_answers": 2451, "num_refused": 0, "num_lost": 0, "duration_us": 2010000, \
"p50_us": 512, "p90_us": 6000, "p99_us": 9130}
"""
FAILURES = OUTPUT.replace('_refused": 0', '_refused": 51').replace('_lost": 0', '_lost": 9')


class TestLoad:
    def test_rate_and_latencies_are_read_from_what_wrk_prints(self) -> None:
        measured = Measured.parse(OUTPUT, cpu_s=0.5)
        assert measured.requests_per_s == pytest.approx(2451 / 2.01)
        assert (measured.p50_ms, measured.p90_ms, measured.p99_ms, measured.cpu_s) == (0.512, 6.0, 9.13, 0.5)

    @pytest.mark.parametrize(
        "output",
        [FAILURES, OUTPUT.replace('_lost": 0', '_lost": 1'), "unable to connect to 127.0.0.1:1 Connection refused\n"],
    )
    def test_a_run_with_failures_measures_nothing(self, output: str) -> None:
        with pytest.raises(NotReady, match="measures nothing"):
            Measured.parse(output)

    def test_where_requests_may_fail_the_rate_is_that_of_the_others(self) -> None:
        measured = Measured.parse(FAILURES, may_fail=True)
        assert (measured.num_requests, measured.num_failed) == (2_400, 60)
        assert measured.requests_per_s == pytest.approx(2_400 / 2.01)
        with pytest.raises(NotReady, match="measures nothing"):
            Measured.parse(OUTPUT.replace('_refused": 0', '_refused": 2451'), may_fail=True)


class TestTrials:
    def test_they_run_in_turns_and_the_first_turn_does_not_count(self) -> None:
        seen: list[tuple[str, int, int]] = []

        def trial(case: str) -> Trial:
            def once(seconds: int, number: int) -> dict[str, float]:
                seen.append((case, seconds, number))
                return {"requests/s": 10.0 * number}

            return Trial(case, "shoal", once)

        rows = interleave("embed", [trial("a"), trial("b")], runs=2, seconds=5, say=lambda _: None)
        assert seen == [("a", 2, 0), ("b", 2, 0), ("a", 5, 1), ("b", 5, 1), ("a", 5, 2), ("b", 5, 2)]
        assert [(row.case, row.figures["requests/s"], row.median("requests/s")) for row in rows] == [
            ("a", [10, 20], 15),
            ("b", [10, 20], 15),
        ]

    def test_a_run_without_figures_does_not_count(self) -> None:
        figures: dict[str, dict[int, dict[str, float]]] = {"a": {1: {"ms": 5.0}, 2: {}}, "b": {1: {}, 2: {}}}

        def trial(case: str) -> Trial:
            return Trial(case, "shoal", lambda _, number: figures[case].get(number, {}))

        trials = [trial(case) for case in figures]
        rows = interleave("embed", trials, runs=2, seconds=1, say=lambda _: None)
        assert [(row.case, row.figures) for row in rows] == [("a", {"ms": [5.0]})]


class TestTables:
    def test_median_lowest_and_highest(self) -> None:
        several = Row(
            "embed", "1 connection", "shoal", {"requests/s": [1_000, 1_500, 900], "p50 ms": [1.25, 1.25, 1.25]}
        )
        assert tables([several]).splitlines() == [
            "| case | target | requests/s | p50 ms |",
            "|---|---|---|---|",
            "| 1 connection | shoal | 1,000 (900 to 1,500) | 1.25 |",
        ]

    def test_a_group_of_figures_has_a_table_of_its_own(self) -> None:
        rows = [
            Row("embed", "a", "shoal", {"requests/s": [5.0], "processor ms: worker": [0.25]}),
            Row("embed", "b", "peer", {"p50 ms": [2.0]}),
        ]
        first, second, third = tables(rows).split("\n\n")
        assert first.splitlines()[2:] == ["| a | shoal | 5 |  |", "| b | peer |  | 2 |"]
        assert (second, third.splitlines()[-1]) == ("processor ms:", "| a | shoal | 0.250 |")

    def test_numbers_have_the_digits_that_matter(self) -> None:
        assert [shown(value) for value in (1234.5, 64.0, 64.25, 1.234, 0.01234)] == [
            "1,234",
            "64",
            "64.25",
            "1.23",
            "0.012",
        ]


class TestCheckouts:
    def test_ratios_are_of_the_medians_of_the_same_case(self) -> None:
        rows = [
            Row("compare", "a", "shoal", {"requests/s": [110.0, 90.0, 120.0]}),
            Row("compare", "a", "old", {"requests/s": [100.0]}),
            Row("compare", "b", "old", {"requests/s": [100.0]}),
        ]
        assert ratios(rows).splitlines()[2:] == ["| a | requests/s (higher is better) | old | 100 | 110 | 1.100 |"]

    def test_a_folder_without_an_environment_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(BadSetting, match="run scripts/check"):
            Checkout.at(tmp_path)


class TestPercentiles:
    def test_each_is_one_of_the_values(self) -> None:
        found = percentiles_ms(np.arange(100, 0, -1) / 1_000)
        assert found == pytest.approx({"p50 ms": 50, "p90 ms": 90, "p99 ms": 99})
        assert percentiles_ms(np.array([0.002])) == pytest.approx({"p50 ms": 2, "p90 ms": 2, "p99 ms": 2})
        assert percentiles_ms(np.array([])) == {}


@contextmanager
def answering(
    answer: Callable[[], int], patience_s: float | None = None, sources: list[str] | None = None
) -> Iterator[int]:
    """Run a server whose answers have the status that `answer` returns; yield its port.

    It closes connections on which nothing has come for `patience_s`, and appends the address of each request's client
    to `sources`.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = patience_s

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if sources is not None:
                sources.append(self.client_address[0])
            self.send_response(answer())
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


BODIES = [b'{"inputs": "storm"}', b'{"inputs": "rain"}']


def embed_url(port: int) -> str:
    """Return the address that requests are sent to."""
    return f"http://127.0.0.1:{port}/embed"


class TestArrivals:
    def test_requests_are_sent_though_none_is_answered(self) -> None:
        eighth, numbers = threading.Event(), count(1)

        def answer() -> int:
            if next(numbers) == 8:
                eighth.set()
            return 200 if eighth.wait(PATIENCE_S) else 500

        with answering(answer) as port:
            found = generate(embed_url(port), BODIES, seconds=0.5, connections=1, rate=100)
        assert len(found.due_s) > 8
        assert found.num_failed == 0

    def test_answers_that_are_no_success_are_counted(self) -> None:
        statuses = iter([200, 503] * 1_000)
        with answering(lambda: next(statuses)) as port:
            found = generate(embed_url(port), BODIES, seconds=0.2, connections=2, rate=100)
        assert found.num_failed == len(found.due_s) // 2 > 0
        assert np.all(found.due_s <= found.sent_s)
        assert np.all(found.sent_s < found.answered_s)

    def test_a_connection_that_the_server_closes_is_not_used_again(self) -> None:
        with answering(lambda: 200, patience_s=0.05) as port:
            found = generate(embed_url(port), BODIES, seconds=1, connections=4, rate=20)
        assert len(found.due_s) > found.num_failed

    def test_without_a_rate_each_answer_brings_the_next_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answered: list[int] = []

        def answer() -> int:
            answered.append(200)
            return 200

        monkeypatch.setattr(time, "perf_counter", lambda: float(len(answered) >= 20))  # the time is over after twenty
        with answering(answer) as port:
            found = generate(embed_url(port), BODIES, seconds=0.5, connections=4)
        assert 20 <= len(found.due_s) < 20 + 4
        assert found.num_failed == 0

    def test_connections_come_from_the_address_that_is_named(self) -> None:
        sources: list[str] = []
        with answering(lambda: 200, sources=sources) as port:
            generate(embed_url(port), BODIES, seconds=0.2, rate=50, source="127.0.0.2")
            generate(embed_url(port), BODIES, seconds=0.2, rate=50)
        assert set(sources) == {"127.0.0.2", "127.0.0.1"}
        assert sources == sorted(sources, reverse=True)


def test_processes_of_a_service_have_the_names_of_what_they_run() -> None:
    commands = ["api", "jobs", "worker", "worker"]
    with ExitStack() as running:
        children = []
        for name in commands:
            command = [sys.executable, "-c", "input()", name]
            children.append(running.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE)))
        try:
            processes = [psutil.Process(child.pid) for child in children]
            wait_until(lambda: all(process.cmdline() for process in processes))  # it is empty as a program begins
            found = named(processes)
        finally:
            for child in children:
                child.communicate(b"\n")
    assert found == dict(zip(["api", "jobs", "worker 1", "worker 2"], [child.pid for child in children], strict=True))


def test_memory_and_processor_time_are_told_by_process() -> None:
    command = [sys.executable, "-c", "sum(range(3_000_000)); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        processes = Processes({"worker 1": child.pid, "worker 2": child.pid})
        try:
            wait_until(lambda: processes.cpu_s()["worker"] > 0)
            memory = processes.memory_mb()
        finally:
            child.communicate(b"\n")
    assert Processes({}).cpu_s() == {}  # a server elsewhere
    assert set(memory) == {"worker 1", "worker 2"}
    assert all(sizes["resident"] > sizes["private"] >= sizes["written"] > 0 for sizes in memory.values())


@pytest.mark.wide
def test_the_waiting_worker_answers_as_a_worker_does(
    redis_url: str, keys: Keys, client: Client, tiny_source: Path, tiny_model: Path, home: Path
) -> None:
    pool = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool}
    settings = environment(model=tiny_source, home=home, cache_mb=0, **pool)
    command = [sys.executable, str(ROOT / "scripts" / "benchmarks" / "waiting.py"), "0.02"]
    with subprocess.Popen(command, env=settings) as worker:
        try:
            vectors = client.embed(["storm", "rain in europe"], normalize=False)
        finally:
            worker.terminate()
    assert worker.returncode == 0
    assert np.all(vectors[0] == vectors[1])


@pytest.mark.wide
@needs_wrk
def test_scripts_bench_prints_and_saves_what_it_measured(tiny_source: Path, home: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "bench.py")]
    saved = tmp_path / "figures.json"
    measured = subprocess.run(
        [*command, "cache", "--runs", "1", "--seconds", "1", "--json", saved],
        env=environment(model=tiny_source, precision="f32", threads=1) | {"SHOAL_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert measured.returncode == 0, measured.stderr
    assert "| 64 connections, 1,000 texts that repeat | cache on |" in measured.stdout
    again = subprocess.run([*command, "--from", saved], capture_output=True, text=True, check=True)
    assert again.stdout == measured.stdout


def test_an_unknown_scenario_is_named() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "bench.py"), "swim"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no scenario 'swim'" in done.stderr
