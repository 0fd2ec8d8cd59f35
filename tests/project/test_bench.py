"""scripts/bench: its parsing, its figures and tables, and the servers that it compares."""

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest
from benchmarks.compare import ratios
from benchmarks.connections import OTHER, ask_in_turn
from benchmarks.peers import PEERS, check, target_of
from benchmarks.plan import Plan, Texts
from benchmarks.server import Processes
from benchmarks.trial import Row, Trial, tables
from benchmarks.wrk import Measured
from conftest import wait_until
from http_servers import Canned, CannedServer
from page import ROOT
from process import environment
from stack import Checkout, named

from shoal.errors import BadSetting, ModelMismatch, NotReady

pytest_plugins = ["http_fixtures"]

BENCH = [sys.executable, str(ROOT / "scripts" / "bench.py")]

OUTPUT = """
Running 2s test @ http://127.0.0.1:40123/embed
  2451 requests in 2.01s, 9.87MB read
measured: {"num_answers": 2451, "num_refused": 0, "num_lost": 0, "duration_us": 2010000, \
"p50_us": 512, "p90_us": 6000, "p99_us": 9130}
"""
LOST = OUTPUT.replace('_lost": 0', '_lost": 9')
FAILURES, ALL_FAIL = LOST.replace('_refused": 0', '_refused": 51'), OUTPUT.replace('_refused": 0', '_refused": 2451')

UNIT = np.eye(2, 3, dtype=np.float32)


def test_rate_and_latencies_are_read_from_the_output_of_wrk_but_not_of_a_failed_run() -> None:
    measured = Measured.parse(OUTPUT, cpu_s=0.5)
    assert measured.requests_per_s == pytest.approx(2451 / 2.01)
    assert (measured.p50_ms, measured.p90_ms, measured.p99_ms, measured.cpu_s) == (0.512, 6.0, 9.13, 0.5)
    some = Measured.parse(FAILURES, may_fail=True)
    assert (some.num_requests, some.num_failed) == (2_400, 60)
    for output, may_fail in ((FAILURES, False), (LOST, False), (ALL_FAIL, True), ("no connection", True)):
        with pytest.raises(NotReady, match="the run is invalid"):
            Measured.parse(output, may_fail=may_fail)


def test_trials_run_in_turns_and_only_figures_of_whole_runs_count() -> None:
    """Warm-ups do not count. A trial that fails is named and not run again, and the others go on."""
    seen: list[tuple[str, int, int]] = []

    def trial(case: str, without_figures: int = 0, fails: bool = False) -> Trial:
        def once(seconds: int, number: int) -> dict[str, float]:
            seen.append((case, seconds, number))
            if fails:
                raise NotReady("it does not answer")
            return {} if without_figures == number else {"ms": 10.0 * number}

        return Trial(case, "shoal", once)

    plan = Plan(Texts("none", [], [], []), 2, 5, [], [], 1)  # two runs of five seconds each
    rows = plan.interleave("embed", [trial("a"), trial("b", without_figures=1), trial("c", fails=True)])
    first, *others = [("a", 2, 0), ("b", 2, 0)], [("a", 5, 1), ("b", 5, 1)], [("a", 5, 2), ("b", 5, 2)]
    assert seen == [*first, ("c", 2, 0), *others[0], *others[1]]
    assert plan.failed == ["embed: c, shoal"]
    assert [(row.case, row.figures, row.median("ms")) for row in rows] == [
        ("a", {"ms": [10, 20]}, 15),
        ("b", {"ms": [20]}, 20),
    ]


def test_tables_have_median_lowest_and_highest_and_ratios_compare_medians_of_the_same_case() -> None:
    rows = [
        Row("embed", "a", "shoal", {"requests/s": [1_234.5, 1_500, 900], "processor ms: worker": [0.01234]}),
        Row("embed", "b", "peer", {"p50 ms": [1.25, 1.25]}),
    ]
    first, second, third = tables(rows).split("\n\n")
    assert first.splitlines() == [
        "| case | target | requests/s | p50 ms |",
        "|---|---|---|---|",
        "| a | shoal | 1,234 (900 to 1,500) |  |",
        "| b | peer |  | 1.25 |",
    ]
    assert (second, third.splitlines()[-1]) == ("processor ms:", "| a | shoal | 0.012 |")
    rates = {("a", "shoal"): [110.0, 90.0, 120.0], ("a", "old"): [100.0], ("b", "old"): [100.0]}
    rows = [Row("compare", *of, {"requests/s": numbers}) for of, numbers in rates.items()]
    assert ratios(rows).splitlines()[2:] == ["| a | requests/s (higher is better) | old | 100 | 110 | 1.100 |"]


def test_cases_that_cannot_be_measured_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="run scripts/check"):
        Checkout.at(tmp_path)
    done = subprocess.run([*BENCH, "swim"], capture_output=True, text=True)
    assert (done.returncode, "no scenario 'swim'" in done.stderr) == (2, True)


def test_one_connection_asks_from_another_address_and_counts_failures(canned: CannedServer) -> None:
    canned.answers = [Canned(200, b"[]"), Canned(503, b"[]")] * 5_000
    figures = ask_in_turn(f"{canned.url}/embed", [b"{}"], 0.2, 0)
    assert canned.clients == {OTHER}
    assert figures["failed"] == len(canned.requests) // 2 > 0
    assert 0 < figures["p50 ms"] <= figures["p99 ms"]


MODEL = "sentence-transformers/all-MiniLM-L6-v2"
OF_OPENAI = {"data": [{"index": 1, "embedding": UNIT[1].tolist()}, {"index": 0, "embedding": UNIT[0].tolist()}]}


@pytest.mark.parametrize(
    ("spec", "url", "body", "answer"),
    [
        ("tei+http://h:3000", "http://h:3000/embed", {"inputs": ["a\u2028\n"]}, UNIT.tolist()),
        ("openai+https://h", "https://h/v1/embeddings", {"input": ["a\u2028\n"], "model": MODEL}, OF_OPENAI),
        ("openai+http://h/e#m", "http://h/e", {"input": ["a\u2028\n"], "model": "m"}, OF_OPENAI),
    ],
)
def test_each_kind_of_server_is_asked_in_its_own_way(spec: str, url: str, body: object, answer: object) -> None:
    target = target_of(spec)
    sent = target.body(["a\u2028\n"])
    assert (target.url, json.loads(sent)) == (url, body)
    assert b"\n" not in sent  # wrk reads a body from each line
    assert target.vectors(answer).tolist() == UNIT.tolist()


def test_an_address_of_no_known_kind_is_refused() -> None:
    for spec in ("", "http://host:1", "grpc+http://host:1", "tei+ftp://host", "tei+http:"):
        with pytest.raises(BadSetting, match=r"write tei\+http"):
            target_of(spec)


def test_a_server_does_the_same_work_if_its_vectors_have_the_same_directions(canned: CannedServer) -> None:
    canned.answers = [Canned(200, json.dumps((UNIT * 3).tolist()).encode())]
    target = target_of(f"tei+{canned.url}")
    assert check(target, ["a", "b"], UNIT) == pytest.approx(1)
    with pytest.raises(ModelMismatch, match=r"0\.995"):
        check(target, ["a", "b"], UNIT + np.array([[0, 0, 0], [0.1, 0, 0]]))


def test_every_version_that_a_peer_needs_is_pinned() -> None:
    for peer in PEERS.values():
        lines = (peer.folder / "requirements.txt").read_text().splitlines()
        pins = [line for line in lines if line and not line.startswith("#")]
        assert "torch==2.13.0" in pins
        assert all("==" in pin for pin in pins)


def test_processes_of_a_service_have_names_memory_and_processor_time() -> None:
    with ExitStack() as stack:
        children = []
        for name in ("api", "jobs", "worker", "worker"):
            command = [sys.executable, "-c", "sum(range(3_000_000)); input()", name]
            children.append(stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE)))
        try:
            found = [psutil.Process(child.pid) for child in children]
            wait_until(lambda: all(process.cmdline() for process in found))  # a program that begins has no name yet
            by_name = named(found)
            processes = Processes(by_name)
            wait_until(lambda: processes.cpu_s()["worker"] > 0)
            memory = processes.memory_mb()
        finally:
            for child in children:
                child.communicate(b"\n")
    assert by_name == dict(zip(["api", "jobs", "worker 1", "worker 2"], [child.pid for child in children], strict=True))
    assert memory.keys() == by_name.keys()
    assert all(sizes["resident"] > sizes["private"] > 0 for sizes in memory.values())


@pytest.mark.wide
@pytest.mark.skipif(not shutil.which("wrk"), reason="wrk is not installed")
def test_scripts_bench_prints_and_saves_its_measurements(tiny_source: Path, home: Path, tmp_path: Path) -> None:
    saved = tmp_path / "figures.json"
    measured = subprocess.run(
        [*BENCH, "cache", "--runs", "1", "--seconds", "1", "--json", saved],
        env=environment(model=tiny_source, precision="f32", threads=1) | {"SHOAL_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert measured.returncode == 0, measured.stderr
    assert "| 64 connections, 1,000 texts that repeat | cache on |" in measured.stdout
    again = subprocess.run([*BENCH, "--from", saved], capture_output=True, text=True, check=True)
    assert again.stdout == measured.stdout
