"""A process that this one starts, watches and stops, together with the processes that it starts itself."""

import ctypes
import logging
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

#: Longest time for a process to finish its work before it is killed.
STOP_WITHIN_S = 15.0

#: Longest wait for killed processes to be gone.
GONE_WITHIN_S = 2.0

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Service:
    """A process in a process group of its own; told to stop, it is killed after `stop_within_s`."""

    name: str
    command: list[str]
    environment: dict[str, str]
    stop_within_s: float = STOP_WITHIN_S
    process: "subprocess.Popen[bytes] | None" = field(default=None)

    def start(self) -> None:
        """Start the process, which gets SIGTERM should this one die."""
        self.kill()
        environment = os.environ | self.environment
        self.process = subprocess.Popen(
            self.command, env=environment, process_group=0, preexec_fn=_die_with_parent, stdin=subprocess.DEVNULL
        )

    def exit_code(self) -> int | None:
        """Return the exit code of the process, or None while it runs."""
        return self.process.poll() if self.process else None

    def stop(self) -> None:
        """Ask the process to finish, wait for it, and kill the processes of its group that are left."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(self.stop_within_s)
        except subprocess.TimeoutExpired:
            log.warning("%s did not stop within %g s and is killed", self.name, self.stop_within_s)
        self.kill()

    def hurry(self) -> None:
        """Kill all processes of the group without waiting. Safe in a signal handler."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill all processes of the group and wait until they are gone."""
        if self.process is None:
            return
        self.hurry()
        until = time.monotonic() + GONE_WITHIN_S
        with suppress(ProcessLookupError):
            self.process.wait()
            while time.monotonic() < until:
                os.killpg(self.process.pid, 0)  # raises once the group is empty
                time.sleep(0.01)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
