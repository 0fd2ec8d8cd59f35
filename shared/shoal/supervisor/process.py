"""A process that this one starts, watches and stops, with all that it starts itself."""

import ctypes
import logging
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

#: How long a process may take to finish what it has begun before it is killed.
STOP_WITHIN_S = 15.0

#: How long what was killed may take to be gone.
GONE_WITHIN_S = 2.0

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Service:
    """One process of the stack, which may take `stop_within_s` to finish what it has begun before it is killed."""

    name: str
    command: list[str]
    environment: dict[str, str]
    stop_within_s: float = STOP_WITHIN_S
    process: "subprocess.Popen[bytes] | None" = field(default=None)

    def start(self) -> None:
        """Starts the process; it is told to stop should this one die."""
        self.kill()
        environment = os.environ | self.environment
        self.process = subprocess.Popen(
            self.command, env=environment, process_group=0, preexec_fn=_die_with_parent, stdin=subprocess.DEVNULL
        )

    def exit_code(self) -> int | None:
        """How the process ended, or None while it runs."""
        return self.process.poll() if self.process else None

    def stop(self) -> None:
        """Asks the process to finish, and kills it if it does not."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(self.stop_within_s)
        except subprocess.TimeoutExpired:
            log.warning("%s did not stop within %g s and is killed", self.name, self.stop_within_s)
        self.kill()

    def hurry(self) -> None:
        """Ends at once what is left of the process and of those that it started. Safe in a signal handler."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Ends them and waits until they are gone."""
        if self.process is None:
            return
        self.hurry()
        until = time.monotonic() + GONE_WITHIN_S
        with suppress(ProcessLookupError):
            self.process.wait()
            while time.monotonic() < until:
                os.killpg(self.process.pid, 0)  # raises once nobody is left
                time.sleep(0.01)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
