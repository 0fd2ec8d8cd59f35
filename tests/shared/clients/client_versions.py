"""Writes the versions of the clients whose tests passed into the page, where scripts/test-clients runs them."""

import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Generator
from importlib.metadata import PackageNotFoundError, version

import pytest
from page import ROOT

PAGE = ROOT / "docs" / "compatibility.md"

#: The outcomes of the tests of each client.
_outcomes: defaultdict[str, list[str]] = defaultdict(list)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the outcome of a test, and of its fixtures if they failed or skipped it."""
    report = yield
    if (marker := item.get_closest_marker("client")) and (report.when == "call" or not report.passed):
        _outcomes[marker.args[0]].append(report.outcome)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each client with its version, and write the versions of those that passed into the page."""
    older = os.environ.get("TEST_OLDER_CLIENTS")
    if not older:
        return
    page = PAGE.read_text("utf-8")
    terminalreporter.section("clients")
    for client, outcomes in sorted(_outcomes.items()):
        found = _version(client, older)
        counts = ", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes))
        terminalreporter.line(f"{client} {found}: {counts}")
        if set(outcomes) == {"passed"}:
            page = re.sub(rf"(?m)^(\| `{client}` \|) \d[^|]* \|", rf"\1 {found} |", page)
    if page != PAGE.read_text("utf-8"):
        PAGE.write_text(page, "utf-8")
        terminalreporter.line(f"{PAGE.relative_to(ROOT)} has the new versions")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a client that was not there fail the run of scripts/test-clients."""
    if os.environ.get("TEST_OLDER_CLIENTS") and any("skipped" in outcomes for outcomes in _outcomes.values()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _version(client: str, older: str) -> str:
    """Return the version of a client in this environment, else in the one with older clients."""
    try:
        return version(client)
    except PackageNotFoundError:
        code = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"
        return subprocess.run([older, "-I", "-c", code, client], capture_output=True, text=True).stdout.strip()
