"""`scripts/install.py`: one installation at a time, in an environment of the Python that was asked for."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from conftest import wait_until
from installs import commands
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from page import ROOT

_SHARED = ("__init__", "contract/__init__", "errors", "process/__init__", "process/printable", "process/progress")
FILES = ("scripts/install.py", "pyproject.toml", *(f"shared/shoal/{name}.py" for name in _SHARED))

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


@pytest.mark.wide
def test_a_named_python_replaces_another_one(folder: Path) -> None:
    output, _ = start(folder).communicate()
    assert output == ""
    output, _ = start(folder, PYTHON=sys.executable).communicate()
    assert "making .venv" in output
    done = subprocess.run([folder / ".venv" / "bin" / "python", "-V"], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == sys.version.split()[0]


def packages(requirements: list[str], python: str, extra: str = "") -> set[str]:
    """Return the names of all packages that the requirements lead to on Linux with this Python."""
    names: set[str] = set()
    variables = {"python_version": python.rpartition(".")[0], "python_full_version": python, "extra": extra}
    for requirement in map(Requirement, requirements):
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate(variables):
            continue
        names.add(name)
        with suppress(PackageNotFoundError):  # one for another Python than this
            for of_extra in requirement.extras or {""}:
                names |= packages(requires(name) or [], python, of_extra)
    return names


@pytest.mark.parametrize("python", ["3.11.2", "3.12.0", "3.13.0", "3.14.0"])
def test_what_serving_takes_is_pinned_for_every_python(python: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *extras["api"], *extras["workers"], *extras["jobs"], *extras["embedded"]]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if not line.startswith("#")}
    assert packages(requirements, python) <= pinned


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("needs `pip install -c constraints.txt '.[s3]'`.", [["-c", "constraints.txt", ".[s3]"]]),
        ("a span (`pip install\nfaiss-cpu`)", [["faiss-cpu"]]),
        ("after `pip install` this does it", []),
        (
            "```sh\n~/x/bin/pip install . \\\n  six && shoal --help\npython -m pip install a; b # c\n```\n",
            [[".", "six"], ["a"]],
        ),
    ],
)
def test_a_line_that_installs_is_found_in_a_document(text: str, expected: list[list[str]]) -> None:
    assert list(commands(text)) == expected


def test_no_line_that_installs_is_forgotten() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        text = " ".join(page.read_text().replace("\\\n", " ").split())
        mentions = text.count("pip install") - text.count("`pip install`")
        assert len(list(commands(page.read_text()))) == mentions, page.name
