"""A child process of the supervisor, in one process group with the processes that the child starts itself."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from shoal.errors import parse
from shoal.process.system_limits import die_with_parent

log = logging.getLogger(__name__)

#: Longest time for a process to finish its work before it is killed, in seconds.
STOP_WITHIN_S = 15.0

#: Longest wait for the end of killed processes, in seconds.
GONE_WITHIN_S = 2.0


@dataclass(slots=True)
class Service:
    """A child process in its own process group. `stop` kills it if it does not end within `stop_within_s` seconds.

    `errors` has the last lines of its standard error. All lines are also copied to the standard error of this process,
    except Shoal's own errors, which the supervisor reports.
    """

    name: str
    command: list[str]
    environment: dict[str, str]
    stop_within_s: float = STOP_WITHIN_S
    process: "subprocess.Popen[bytes] | None" = None
    errors: "deque[str]" = field(default_factory=lambda: deque(maxlen=20))
    _reader: threading.Thread | None = None

    def start(self) -> None:
        """Start the process. Linux sends it SIGTERM if this process dies. Raises OSError."""
        self.kill()
        environment = os.environ | self.environment
        self.process = subprocess.Popen(
            self.command,
            env=environment,
            process_group=0,
            preexec_fn=die_with_parent,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self.errors.clear()
        reader = threading.Thread(target=_pass_on, args=(self.process.stderr, self.errors), daemon=True)
        try:
            reader.start()
        except RuntimeError as error:  # the system gives this process no more threads
            with self.process:
                self.kill()
            raise OSError(str(error)) from error
        self._reader = reader

    def exit_code(self) -> int | None:
        """Return the exit code of the process, or None while it runs."""
        return self.process.poll() if self.process else None

    def last_error(self) -> str:
        """Return the last line that the ended process wrote to its standard error."""
        if self._reader:
            self._reader.join(GONE_WITHIN_S)  # with a limit, because a child process may keep the pipe open
        return self.errors[-1] if self.errors else "it gave no reason"

    def stop(self) -> None:
        """Ask the process to finish, wait for its end, and kill the remaining processes of its group."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(self.stop_within_s)
        except subprocess.TimeoutExpired:
            log.warning("%s did not stop within %g s and is killed", self.name, self.stop_within_s)
        self.kill()

    def send_kill(self) -> None:
        """Kill all processes of the group, but do not wait for their end. Safe in a signal handler."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill all processes of the group and wait for their end."""
        if self.process is None:
            return
        self.send_kill()
        until = time.monotonic() + GONE_WITHIN_S
        with suppress(ProcessLookupError):
            self.process.wait()
            while time.monotonic() < until:
                os.killpg(self.process.pid, 0)  # raises an error once the group is empty
                time.sleep(0.01)


def _pass_on(source: IO[bytes], kept: "deque[str]") -> None:
    """Copy lines to this process's standard error and keep the last lines, until the source is closed."""
    with source:
        for line in source:
            kept.append(line.decode(errors="replace").rstrip())
            if parse(kept[-1]):
                continue
            with suppress(OSError, ValueError):  # go on without a terminal, because a full pipe would stop the process
                sys.stderr.write(f"{kept[-1]}\n")
                sys.stderr.flush()
