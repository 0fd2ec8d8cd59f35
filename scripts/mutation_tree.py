"""A copy of the repository, in which tests run on one mutant after another, each run in a separate process."""

import importlib
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

_PACKAGES = ("shared", "api", "workers")
_OWN = ("shoal", "shoal_api", "shoal_workers")

#: Modules that import nearly all modules and libraries that the tests import.
_IMPORTED_ONCE = ("shoal_api.server.server", "shoal_workers.service.service", "hypothesis.extra.numpy", "yaml")

#: Exit codes of a run: pytest's codes, and a code for a run that took too long.
PASSED, FAILED, NO_TESTS, TOO_LONG = 0, 1, 5, -1


class Tree:
    """The copy. Each run is a fork of this process, which has imported the libraries and forgotten Shoal's modules."""

    def __init__(self, repository: Path, folder: Path):
        self.root = folder / "tree"
        self.log = folder / "log"
        self._folder = folder
        self._num_runs = 0
        listed = ["git", "-C", str(repository), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listed, capture_output=True, check=True, text=True).stdout.split("\0")[:-1]:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # the file is deleted, but this is not committed yet
                shutil.copy(repository / name, self.root / name)
        checked = py_compile.PycInvalidationMode.CHECKED_HASH
        for package in _PACKAGES:
            for path in (self.root / package).rglob("*.py"):
                py_compile.compile(str(path), invalidation_mode=checked)
        paths = [str(self.root / package) for package in _PACKAGES]
        sys.path[:0] = paths
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        for name in _IMPORTED_ONCE:
            importlib.import_module(name)
        for name in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
            del sys.modules[name]

    @classmethod
    @contextmanager
    def copy(cls, repository: Path) -> Iterator[Self]:
        """Make the copy, in memory if the system has a folder for that, and remove it at the end."""
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(prefix="shoal-mutants-", dir=memory if memory.is_dir() else None) as folder:
            yield cls(repository, Path(folder))

    @contextmanager
    def changed(self, path: str, source: str) -> Iterator[None]:
        """Change the contents of a file until the end of the `with` block."""
        file = self.root / path
        original = file.read_bytes()
        file.write_text(source, "utf-8")
        try:
            yield
        finally:
            file.write_bytes(original)

    def test(self, tests: Sequence[str], limit_s: float, patience_s: float, plugins: Sequence[Any] = ()) -> int:
        """Run the tests until one fails; return the exit code. The log has their output."""
        self._num_runs += 1
        temporary = self._folder / "tmp" / str(self._num_runs)
        pid = os.fork()
        if not pid:
            self._run_forked([*tests, f"--basetemp={temporary}"], patience_s, plugins)
        code = _wait(pid, limit_s)
        shutil.rmtree(temporary, ignore_errors=True)
        return code

    def _run_forked(self, args: Sequence[str], patience_s: float, plugins: Sequence[Any]) -> None:
        """Run pytest in this process, which is a fork, and end it."""
        os.setsid()
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(output, number)
        os.chdir(self.root)
        (self._folder / "tmp").mkdir(exist_ok=True)
        # All runs share the tiny model that the first run makes, as the processes of one run do.
        os.environ |= {"TEST_PATIENCE_S": str(patience_s), "PYTEST_XDIST_WORKER": "gw0", "CI": "1"}
        options = ["-x", "-q", "--tb=line", "-m", "not wide"]
        options += ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # for plugins that are already imported
        code = 3
        try:
            code = pytest.main([*options, *args], plugins=plugins)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)


def _wait(pid: int, limit_s: float) -> int:
    """Wait until a child has ended, at most `limit_s`, and end the processes that it has started."""
    until = time.monotonic() + limit_s
    descendants: set[psutil.Process] = set()
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            break
        with suppress(psutil.Error):
            descendants |= set(psutil.Process(pid).children(recursive=True))
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            status = -1
            break
        time.sleep(0.05)
    for process in descendants:
        with suppress(psutil.Error):
            process.kill()
    return TOO_LONG if status == -1 else os.waitstatus_to_exitcode(status)
