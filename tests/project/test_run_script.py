"""`scripts/run` up to its last command, with a `shoal` and an installation that only note their calls."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

NOTE = """#!/bin/sh
echo "${SHOAL_INDEXES-none}|$*" >>calls
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the script, in which nothing is installed. `calls` has a line for each installation."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/run", tmp_path / "scripts")
    (tmp_path / "scripts/install").write_text("echo installed >>calls\n")
    (tmp_path / "calls").touch()
    return tmp_path


def run(folder: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run the script with a home folder beside it."""
    environment = {"PATH": os.environ["PATH"], "SHOAL_HOME": str(folder / "home"), **variables}
    command = [str(folder / "scripts/run"), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def calls(folder: Path) -> list[str]:
    """Return the installations and calls so far."""
    return (folder / "calls").read_text().splitlines()


def install(folder: Path, name: str = "shoal") -> None:
    """Install a program that only notes its calls."""
    program = folder / ".venv/bin" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(NOTE)
    program.chmod(0o755)


def test_it_installs_and_serves_where_it_is_called(folder: Path, tmp_path: Path) -> None:
    install(folder)
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    command = [str(folder / "scripts/run"), "--home", "a=b c"]
    assert subprocess.run(command, cwd=elsewhere).returncode == 0
    assert calls(folder) == ["installed"]
    assert (elsewhere / "calls").read_text() == "none|serve --sample --home a=b c\n"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_installs_nothing(folder: Path, flag: str) -> None:
    done = run(folder, "--port", "1", flag)
    assert done.returncode == 0
    assert "scripts/run [--workers N]" in done.stdout
    assert calls(folder) == []


def test_a_stop_installs_nothing_where_nothing_ever_ran(folder: Path) -> None:
    done = run(folder, "--stop")
    assert done.returncode == 0
    assert done.stdout == f"nothing runs in {folder / 'home'}\n"
    assert calls(folder) == []


def test_a_stop_uses_what_is_installed(folder: Path) -> None:
    install(folder, "python")
    assert run(folder, "--stop", "--home", "elsewhere").returncode == 0
    assert calls(folder)[1:] == ["none|-I -m shoal serve --stop --home elsewhere"]


@pytest.mark.parametrize("flags", [(), ("--home", "elsewhere")])
def test_a_stop_installs_first_where_something_may_run(folder: Path, flags: tuple[str, ...]) -> None:
    install(folder)
    (folder / "home").mkdir()
    (folder / "home/serve.pid").touch()
    assert run(folder, "--stop", *flags).returncode == 0
    assert calls(folder) == ["installed", " ".join(["none|serve --sample --stop", *flags])]
