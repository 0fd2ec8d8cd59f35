"""The files in `deploy/` for monitoring, systemd and nginx: metrics exist, alerts fire, programs accept the files."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml
from conftest import PATIENCE_S, free_port, wait_until
from http_servers import Canned, CannedServer, listens, running
from page import ROOT, read, table

from shoal.supervisor.process import STOP_WITHIN_S
from shoal.supervisor.supervisor import API_STOP_WITHIN_S

PROMETHEUS = ROOT / "deploy" / "prometheus"
BOARD: dict[str, Any] = json.loads(read("deploy/grafana/shoal.json"))
(GROUP,) = yaml.safe_load(read("deploy/prometheus/alerts.yml"))["groups"]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in GROUP["rules"]}

CONFIGURATIONS = ("prometheus", "prometheus-compose")

needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="there is no promtool: apt install prometheus")


def queries() -> Iterator[str]:
    yield from (target["expr"] for panel in BOARD["panels"] for target in panel["targets"])
    yield from (alert["expr"] for alert in ALERTS.values())


def series() -> set[str]:
    """Return the names of all series of the metrics in docs/operating.md."""
    found = {"up"}
    for name, (kind, *_) in table("docs/operating.md", "Name").items():
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name.strip("`") + suffix for suffix in suffixes}
    return found


def test_every_query_names_metrics_that_exist() -> None:
    named = {name for query in queries() for name in re.findall(r"\b(?:shoal_\w+|process_\w+|up\b)", query)}
    assert len(named) > 30
    assert named <= series()


def test_every_panel_has_a_description_a_number_and_a_place_of_its_own_and_shows_the_chosen_job() -> None:
    panels = BOARD["panels"]
    assert all(panel["description"] for panel in panels)
    assert all('job=~"$job"' in target["expr"] for panel in panels for target in panel["targets"])
    places = [panel["gridPos"] for panel in panels]
    cells = [(place["x"] + x, place["y"] + y) for place in places for x in range(place["w"]) for y in range(place["h"])]
    assert (len(set(cells)), max(x for x, _ in cells) < 24) == (len(cells), True)
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_alert_says_what_to_do_and_has_a_row_on_the_page_and_tests_that_it_fires_and_does_not() -> None:
    rows = table("docs/operating.md", "alert")
    severities = {name: alert["labels"]["severity"] for name, alert in ALERTS.items()}
    assert {name: severity for name, (severity, *_) in rows.items()} == severities
    for alert in ALERTS.values():
        text, anchor = alert["annotations"]["description"].rsplit(" ", 1)
        assert (text.endswith("."), anchor) == (True, "docs/operating.md#alerts")
    tests = yaml.safe_load(read("deploy/prometheus/alerts_test.yml"))["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    for fires in (True, False):
        assert {case["alertname"] for case in cases if bool(case.get("exp_alerts")) == fires} == ALERTS.keys()


@needs_promtool
def test_prometheus_accepts_its_files_and_the_boards_queries_and_alerts_fire_when_they_should(tmp_path: Path) -> None:
    rules = [
        {"record": f"board:{n}", "expr": query.replace("$__rate_interval", "1m")} for n, query in enumerate(queries())
    ]
    (tmp_path / "board.yml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    for folder, *arguments in (
        (PROMETHEUS, "test", "rules", "alerts_test.yml"),
        *((PROMETHEUS, "check", "config", f"{name}.yml") for name in CONFIGURATIONS),
        (tmp_path, "check", "rules", "board.yml"),
    ):
        found = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr


def test_compose_accepts_all_profiles_and_mounts_files_that_exist() -> None:
    mounted = re.findall(r"\./(deploy/[\w./-]+):", read("docker-compose.yml"))
    assert len(mounted) == 6
    assert all((ROOT / name).exists() for name in mounted)
    if not shutil.which("docker") or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("there is no docker compose")
    command = ["docker", "compose", "--profile", "*", "config", "--quiet"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """The units start this Python instead of the installed program, because systemd checks that the program exists."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd-analyze: apt install systemd")
    units = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
    assert len(units) == 3
    for unit in units:
        text = re.sub(r"^(Exec\w+)=/\S+", rf"\1={sys.executable}", unit.read_text(), flags=re.MULTILINE)
        (tmp_path / unit.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / unit.name) for unit in units)]
    found = subprocess.run(command, capture_output=True, text=True)
    ours = [line for line in found.stderr.splitlines() if str(tmp_path) in line or "shoal" in line]
    assert (found.returncode, ours) == (0, [])


@pytest.mark.parametrize(("unit", "least_s"), [("api@", API_STOP_WITHIN_S), ("worker@", STOP_WITHIN_S), ("runner", 15)])
def test_a_stopped_unit_has_time_to_finish(unit: str, least_s: float) -> None:
    (time_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", read(f"deploy/systemd/shoal-{unit}.service"), re.MULTILINE)
    assert float(time_s) > least_s


def find_nginx() -> str:
    """Return the path of nginx; skip the test if there is none."""
    if not (nginx := shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")):
        pytest.skip("there is no nginx: apt install nginx-light")
    return nginx


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Callable[[int, int], str]]:
    """Yield a function that starts nginx with the file of `deploy/` in front of two ports, and returns its address."""
    nginx, port, started = find_nginx(), free_port(), []

    def start(first: int, second: int) -> str:
        text = read("deploy/nginx/shoal.conf").replace("listen 8080", f"listen 127.0.0.1:{port}")
        (tmp_path / "shoal.conf").write_text(text.replace("8081", str(first)).replace("8082", str(second)))
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        folders = " ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
        http = f"http {{ access_log off; {folders} include {tmp_path}/shoal.conf; }}"
        main = f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/errors; events {{}} {http}"
        (tmp_path / "nginx.conf").write_text(main)
        started.append(subprocess.Popen([nginx, "-c", tmp_path / "nginx.conf", "-e", tmp_path / "errors"]))
        wait_until(lambda: listens(port))
        return f"http://127.0.0.1:{port}"

    yield start
    for process in started:
        process.terminate()
        process.wait()


@contextmanager
def breaking_server() -> Iterator[CannedServer]:
    """Run a server that closes each connection without an answer, like a killed API."""
    server = CannedServer()
    server.answers = [Canned(0)]
    with running(server):
        yield server


def asked(address: str, path: str) -> None:
    with pytest.raises(HTTPError, match="502"):
        urlopen(Request(address + path, b"{}"), timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("path", "times"),
    [("/search", 2), ("/v1/embeddings", 2), ("/v2/rerank", 2), ("/v1/jobs", 1), ("/v1/indexes/a/documents", 1)],
)
def test_the_proxy_repeats_only_questions(proxy: Callable[[int, int], str], path: str, times: int) -> None:
    with breaking_server() as first, breaking_server() as second:
        asked(proxy(first.server_port, second.server_port), path)
    assert [asked_for for asked_for, _ in [*first.requests, *second.requests]] == [path] * times


@pytest.mark.parametrize("path", ["/embed", "/v1/jobs"])
def test_the_proxy_asks_the_other_api_when_one_does_not_listen(proxy: Callable[[int, int], str], path: str) -> None:
    with breaking_server() as second:
        address = proxy(free_port(), second.server_port)
        for _ in range(4):
            asked(address, path)
    assert second.requests


def test_nginx_accepts_the_file_for_containers(tmp_path: Path) -> None:
    (tmp_path / "nginx.conf").write_text(read("deploy/nginx/compose.conf").replace("/tmp", str(tmp_path)))
    found = subprocess.run([find_nginx(), "-t", "-c", tmp_path / "nginx.conf"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(("first", "told"), [(200, "0 failed"), (503, "1 x ValueError: 503 no room"), (0, "Remote")])
def test_the_load_tells_which_requests_failed_and_sends_none_again(first: int, told: str) -> None:
    server = CannedServer()
    server.answers = [Canned(first, b"no room"), Canned()]
    with running(server):
        command = [sys.executable, str(ROOT / "deploy" / "load.py"), server.url, "2"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
            wait_until(lambda: len(server.bodies) > 10)
            load.terminate()
            output, _ = load.communicate(timeout=PATIENCE_S)
    assert load.returncode == int(first != 200)
    assert told in output
    bodies = [body for _, body in server.bodies]
    assert len(bodies) == len(set(bodies))
