"""Commands of `shoal` as processes of their own, as an operator runs them."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from shoal.settings import variable


def environment(**settings: Any) -> dict[str, str]:
    """This process's environment with no settings of Shoal's but the given ones."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    return ours | {variable(name): str(value) for name, value in settings.items()}


def run(*arguments: Any, stdin: str | None = None, **settings: Any) -> "subprocess.CompletedProcess[str]":
    """Runs `shoal` to its end."""
    command = [sys.executable, "-m", "shoal", *map(str, arguments)]
    return subprocess.run(
        command, env=environment(**settings), input=stdin, capture_output=True, text=True, timeout=300
    )


class Process:
    """`shoal …`, running; it is killed at the end of the `with` if it has not ended by then."""

    #: The command that starts it, up to its name.
    launcher: ClassVar[tuple[str, ...]] = ()

    def __init__(self, log: Path, *arguments: Any, **settings: Any):
        self.log = log
        command = [*self.launcher, sys.executable, "-m", "shoal", *map(str, arguments)]
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, env=environment(**settings), stdout=output, stderr=output)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self.log.read_text()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    def terminate(self) -> int:
        """Asks it to stop, and returns its exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        """Its exit code, waited for."""
        return self._process.wait(90)
