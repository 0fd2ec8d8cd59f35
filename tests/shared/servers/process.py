"""Commands of `shoal` in processes, as an operator runs them."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, Self

from conftest import PATIENCE_S

from shoal.process.system_limits import die_with_parent
from shoal.settings import variable


def environment(**settings: Any) -> dict[str, str]:
    """Return this process's environment, with only the given settings of Shoal."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    return ours | {variable(name): str(value) for name, value in settings.items()}


def run(
    *arguments: Any, stdin: str | None = None, cwd: Path | None = None, **settings: Any
) -> "subprocess.CompletedProcess[str]":
    """Run `shoal` to its end and return its output."""
    command, env = [sys.executable, "-m", "shoal", *map(str, arguments)], environment(**settings)
    return subprocess.run(command, env=env, input=stdin, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S)


#: A program that runs `shoal`. Its first argument is the size limit of a file in bytes, the others are `shoal`'s.
_SMALL_DISK = """
import resource, sys
from shoal.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
main(sys.argv[2:])
"""


def run_on_small_disk(max_file_bytes: int, *arguments: Any, **settings: Any) -> "subprocess.CompletedProcess[str]":
    """Run `shoal` with the size limit `max_file_bytes` of each file, as on a full disk, and return its output."""
    command = [sys.executable, "-c", _SMALL_DISK, str(max_file_bytes), *map(str, arguments)]
    return subprocess.run(command, env=environment(**settings), capture_output=True, text=True, timeout=PATIENCE_S)


class Process:
    """A running command of `shoal`. The end of the `with` block kills it, and the end of the tests terminates it."""

    #: Words of the command before `python -m shoal`.
    launcher: ClassVar[tuple[str, ...]] = ()

    def __init__(self, log: Path, *arguments: Any, **settings: Any):
        self.log = log
        command = [*self.launcher, sys.executable, "-m", "shoal", *map(str, arguments)]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, env=environment(**settings), stdout=output, stderr=output, preexec_fn=die_with_parent
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def output(self) -> str:
        """The text that the process has written so far."""
        return self.log.read_text()

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self._process.send_signal(number)

    def terminate(self) -> int:
        """Tell the process to stop, and return its exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        return self._process.wait(PATIENCE_S)


class FewFiles(Process):
    """A process that may open only 256 files until it raises this limit."""

    launcher = ("sh", "-c", 'ulimit -S -n 256; exec "$@"', "sh")
