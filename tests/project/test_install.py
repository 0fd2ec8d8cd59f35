"""The programs that install and start Shoal, and the `pip install` lines of the pages."""

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

_SHARED = (
    "__init__",
    "contract/__init__",
    "errors",
    "process/__init__",
    "process/printable",
    "process/progress",
    "task_progress",
)
FILES = ("scripts/install.py", "pyproject.toml", *(f"shared/shoal/{name}.py" for name in _SHARED))

#: A replacement for the Python of .venv. It reports `VERSION`; called as pip, it reads the file `gate` to its end.
PYTHON = """#!/bin/sh
case "$*" in *"-m pip"*) env >{folder}/environment; touch {folder}/started; exec cat {folder}/gate ;; esac
echo '{version}'
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the files that the script needs, with an empty environment of another Python."""
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
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "SHOAL_VENV")}
    command = [sys.executable, "-I", str(folder / "scripts" / "install.py"), "a command", *parts]
    return subprocess.Popen(command, env=inherited | variables, stdout=subprocess.PIPE, text=True)


def test_pip_holds_the_lock_of_an_installation_that_was_killed(folder: Path) -> None:
    os.mkfifo(folder / "gate")
    process = start(folder, "serve")
    wait_until(lambda: (folder / "started").exists())
    process.kill()
    process.communicate()
    with (folder / "pyproject.toml").open() as lock:
        with (folder / "gate").open("w"), pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(lock, fcntl.LOCK_EX)  # this waits until pip has ended


def test_variables_that_are_meant_for_other_projects_do_not_reach_pip(folder: Path) -> None:
    (folder / "gate").touch()
    start(folder, "serve", PIP_REQUIRE_HASHES="1", PIP_TARGET="/elsewhere", PIP_INDEX_URL="a-mirror").communicate()
    variables = (folder / "environment").read_text()
    assert "PIP_INDEX_URL=a-mirror" in variables
    assert "PIP_REQUIRE_HASHES" not in variables
    assert "PIP_TARGET" not in variables


@pytest.mark.wide
def test_a_named_python_replaces_another_one(folder: Path) -> None:
    assert start(folder).communicate()[0] == ""
    assert "making .venv" in start(folder, PYTHON=sys.executable).communicate()[0]
    done = subprocess.run([folder / ".venv" / "bin" / "python", "-V"], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == sys.version.split()[0]


def packages(requirements: list[str], python: str, extra: str = "") -> set[str]:
    """Return the names of all packages that the requirements need on Linux with this Python."""
    names: set[str] = set()
    variables = {"python_version": python.rpartition(".")[0], "python_full_version": python, "extra": extra}
    for requirement in map(Requirement, requirements):
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate(variables):
            continue
        names.add(name)
        with suppress(PackageNotFoundError):  # a package for another Python
            for of_extra in requirement.extras or {""}:
                names |= packages(requires(name) or [], python, of_extra)
    return names


def test_the_packages_of_a_service_are_pinned_for_every_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *extras["api"], *extras["workers"], *extras["jobs"], *extras["embedded"]]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if not line.startswith("#")}
    for python in ("3.11.2", "3.12.0", "3.13.0", "3.14.0"):
        assert packages(requirements, python) <= pinned


def test_no_line_that_installs_is_forgotten() -> None:
    text = """a span (`pip install
        faiss-cpu`), `pip install -c constraints.txt '.[s3]'`, and after `pip install` this does it\n
```sh
~/x/bin/pip install . \\
  six && shoal --help
python -m pip install a; b # c
```
"""
    assert list(commands(text)) == [[".", "six"], ["a"], ["faiss-cpu"], ["-c", "constraints.txt", ".[s3]"]]
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = " ".join(page.read_text().replace("\\\n", " ").split())
        mentions = text.count("pip install") - text.count("`pip install`")
        assert len(list(commands(page.read_text()))) == mentions, page.name


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Return a folder with only `scripts/run`. Its file `calls` gets a line for each installation and call."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/run", tmp_path / "scripts")
    (tmp_path / "scripts/install").write_text("echo installed >>calls\n")
    return tmp_path


def put_program(folder: Path, name: str) -> None:
    """Put a program into the environment that only notes its calls."""
    program = folder / ".venv/bin" / name
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$*" >>calls\n')
    program.chmod(0o755)


def run(folder: Path, *arguments: str, cwd: Path | None = None) -> tuple[str, list[str]]:
    """Run the script with a home folder beside it; return its output and the lines of `calls`."""
    variables = {"PATH": os.environ["PATH"], "SHOAL_HOME": str(folder / "home")}
    command = [str(folder / "scripts/run"), *arguments]
    (folder / "calls").write_text("")
    done = subprocess.run(command, cwd=cwd or folder, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout, (folder / "calls").read_text().splitlines()


def test_run_installs_and_serves_where_it_is_called(bare: Path) -> None:
    put_program(bare, "shoal")
    (elsewhere := bare / "else where").mkdir()
    assert run(bare, "--home", "a=b c", cwd=elsewhere)[1] == ["installed"]
    assert (elsewhere / "calls").read_text() == "serve --sample --home a=b c\n"


def test_help_and_a_stop_install_only_where_something_may_run(bare: Path) -> None:
    output, calls = run(bare, "--port", "1", "--help")
    assert ("scripts/run [--workers N]" in output, calls) == (True, [])
    assert run(bare, "--stop") == (f"nothing runs in {bare / 'home'}\n", [])
    put_program(bare, "python")
    assert run(bare, "--stop", "--home", "elsewhere")[1][1:] == ["-I -m shoal serve --stop --home elsewhere"]
    (bare / ".venv/bin/python").rename(bare / ".venv/bin/shoal")
    (bare / "home").mkdir()
    (bare / "home/serve.pid").touch()
    for flags in ("--stop", "--stop --home elsewhere"):
        assert run(bare, *flags.split())[1] == ["installed", f"serve --sample {flags}"]
