"""The board and the alerts of `deploy/`: their queries name metrics that exist, and each alert fires when it should."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from page import ROOT, read, table

PROMETHEUS = ROOT / "deploy" / "prometheus"
BOARD: dict[str, Any] = json.loads(read("deploy/grafana/shoal.json"))
(GROUP,) = yaml.safe_load(read("deploy/prometheus/alerts.yml"))["groups"]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in GROUP["rules"]}
PAGE = read("docs/operating.md")

needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="there is no promtool: apt install prometheus")


def promtool(*arguments: str, folder: Path = PROMETHEUS) -> None:
    """Run promtool in the folder, and fail the test with what it has found."""
    found = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def queries() -> Iterator[str]:
    """Yield the queries of the board and of the alerts."""
    yield from (target["expr"] for panel in BOARD["panels"] for target in panel["targets"])
    yield from (alert["expr"] for alert in ALERTS.values())


def series() -> set[str]:
    """Return the names of all series of the metrics that are on the page."""
    found = {"up"}
    for name, (kind, *_) in table("docs/metrics.md", "Name").items():
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name.strip("`") + suffix for suffix in suffixes}
    return found


def test_every_query_is_of_metrics_that_exist() -> None:
    named = {name for query in queries() for name in re.findall(r"\b(?:shoal_\w+|process_\w+|up\b)", query)}
    assert len(named) > 30
    assert named <= series()


def test_every_panel_says_what_it_shows_of_the_chosen_job() -> None:
    assert all(panel["description"] for panel in BOARD["panels"])
    targets = [target for panel in BOARD["panels"] for target in panel["targets"]]
    assert all('job=~"$job"' in target["expr"] for target in targets)


def test_panels_have_places_and_numbers_of_their_own() -> None:
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    cells = [(place["x"] + x, place["y"] + y) for place in places for x in range(place["w"]) for y in range(place["h"])]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_every_alert_says_what_to_do_and_has_a_section_on_the_page() -> None:
    sections = re.findall(r"^### (Shoal\w+)$", PAGE, re.MULTILINE)
    assert sorted(sections) == sorted(ALERTS)
    for name, alert in ALERTS.items():
        text, anchor = alert["annotations"]["description"].rsplit(" ", 1)
        assert (text.endswith("."), anchor) == (True, f"docs/operating.md#{name.lower()}")


def test_every_alert_is_tested_where_it_fires_and_where_it_does_not() -> None:
    cases = [
        case
        for test in yaml.safe_load(read("deploy/prometheus/alerts_test.yml"))["tests"]
        for case in test["alert_rule_test"]
    ]
    for fires in (True, False):
        tested = {case["alertname"] for case in cases if bool(case.get("exp_alerts")) == fires}
        assert tested == ALERTS.keys()


@needs_promtool
def test_alerts_fire_when_they_should() -> None:
    promtool("test", "rules", "alerts_test.yml")


@needs_promtool
@pytest.mark.parametrize("name", ["prometheus.yml", "prometheus-compose.yml"])
def test_prometheus_takes_its_configuration(name: str) -> None:
    promtool("check", "config", name)


@needs_promtool
def test_prometheus_takes_the_queries_of_the_board(tmp_path: Path) -> None:
    rules = [
        {"record": f"board:{n}", "expr": query.replace("$__rate_interval", "1m")} for n, query in enumerate(queries())
    ]
    (tmp_path / "board.yml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    promtool("check", "rules", "board.yml", folder=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: url, minutes"),
        (("http://127.0.0.1:1", "10"), "http://127.0.0.1:1 does not answer as a Prometheus does"),
        (("nowhere", "10"), "nowhere does not answer as a Prometheus does"),
        (("http://127.0.0.1:1", "0"), "minutes must be over 0"),
    ],
)
def test_the_plot_of_the_board_says_what_is_wrong(arguments: tuple[str, ...], message: str) -> None:
    pytest.importorskip("matplotlib")
    script = ROOT / "scripts" / "board_plot.py"
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True)
    assert (done.returncode > 0, message in done.stderr, "Traceback" in done.stderr) == (True, True, False)


def test_compose_takes_the_overlay() -> None:
    if not shutil.which("docker") or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("there is no docker compose")
    command = ["docker", "compose", "-f", "docker-compose.yml", "-f", "deploy/monitoring.yml", "config", "--quiet"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")
    mounted = re.findall(r"\./(deploy/[\w./-]+):", read("deploy/monitoring.yml"))
    assert len(mounted) == 4
    assert [name for name in mounted if not (ROOT / name).exists()] == []
