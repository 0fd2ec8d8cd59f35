"""`scripts/install.py`: one installation at a time, in an environment of the Python that was asked for."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import wait_until
from page import ROOT

FILES = ("scripts/install.py", "shared/shoal/__init__.py", "shared/shoal/progress.py", "pyproject.toml")

#: Stands for the Python of .venv: says that it is `VERSION`, and as pip reads the file `gate` to its end.
PYTHON = """#!/bin/sh
case "$*" in *"-m pip"*) env >{folder}/environment; touch {folder}/started; exec cat {folder}/gate ;; esac
echo '{version}'
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of what the script needs, with an environment of another Python that lacks all parts."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("constraints.txt", "default-model.txt"):
        (tmp_path / name).touch()
    venv = tmp_path / ".venv"
    (venv / "lib" / "python3" / "site-packages" / "pip-99.0.dist-info").mkdir(parents=True)
    (venv / "bin").mkdir()
    program = venv / "bin" / "python"
    program.write_text(PYTHON.format(folder=tmp_path, version="(2, 7)"))
    program.chmod(0o755)
    (venv / ".installed").write_text(json.dumps({"home": f"{venv} (2, 7)", "parts": {}}))
    return tmp_path


def start(folder: Path, *parts: str, **variables: str) -> "subprocess.Popen[str]":
    """Start the script."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHON", "SHOAL_VENV")
    } | variables
    command = [sys.executable, "-I", str(folder / "scripts" / "install.py"), "a command", *parts]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_pip_holds_the_lock_of_an_installation_that_was_killed(folder: Path) -> None:
    os.mkfifo(folder / "gate")
    process = start(folder, "serve")
    wait_until(lambda: (folder / "started").exists())
    process.kill()
    process.communicate()
    with (folder / "pyproject.toml").open() as lock:
        with (folder / "gate").open("w"), pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(lock, fcntl.LOCK_EX)  # which waits until pip has ended


def test_variables_that_are_meant_for_other_projects_do_not_reach_pip(folder: Path) -> None:
    (folder / "gate").touch()
    start(folder, "serve", PIP_REQUIRE_HASHES="1", PIP_TARGET="/elsewhere", PIP_INDEX_URL="a-mirror").communicate()
    variables = (folder / "environment").read_text()
    assert "PIP_INDEX_URL=a-mirror" in variables
    assert "PIP_REQUIRE_HASHES" not in variables
    assert "PIP_TARGET" not in variables


def test_a_named_python_replaces_another_one(folder: Path) -> None:
    output, _ = start(folder).communicate()
    assert output == ""
    output, _ = start(folder, PYTHON=sys.executable).communicate()
    assert "making .venv" in output
    done = subprocess.run([folder / ".venv" / "bin" / "python", "-V"], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == sys.version.split()[0]
