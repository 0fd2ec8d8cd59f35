"""`shoal serve` in the background: started as a process of its own, and stopped."""

import math
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from select import select

import click

from shoal.errors import NotReady, parse
from shoal.process.progress import wait_until
from shoal.settings import Settings
from shoal.supervisor.pidfile import already_serving, make_home, running_pid

#: Beginning of the last line of the summary, which is printed once everything is ready.
LAST_LINE = "stop:   "


def detach(settings: Settings) -> Path | None:
    """Return the log to the process that goes on in the background, and None here once it is ready."""
    if pid := running_pid(settings):
        raise already_serving(settings, pid)
    make_home(settings)
    logfile = settings.home_folder / "serve.log"
    # A second start at the same moment must not overwrite what the first writes.
    output = os.open(logfile, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.truncate(output, 0)
    if not (pid := os.fork()):  # what is loaded by now need not be loaded again
        _leave_terminal(output)
        return logfile
    os.close(output)
    _wait_for_summary(pid, logfile)
    click.echo(logfile.read_text(), nl=False)
    return None


def _leave_terminal(output: int) -> None:
    """Begin a session without input and with this output, and close all other files that this process has got."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with suppress(OSError):  # that of the list itself is closed by now
                os.close(int(name))


def _wait_for_summary(pid: int, logfile: Path) -> None:
    def has_summary() -> bool:
        has_ended = bool(os.waitpid(pid, os.WNOHANG)[0])  # asked first, as the reason is written before the end
        printed = logfile.read_text()
        if has_ended:
            error = parse(printed.rstrip().rpartition("\n")[2])
            raise error or NotReady(f"the service did not start: {logfile} ends with:\n{printed[-2_000:].rstrip()}")
        return f"\n{LAST_LINE}" in printed

    try:
        wait_until("the service", has_summary, within_s=math.inf)  # the process has limits of its own
    except KeyboardInterrupt:
        click.echo("stopping …", err=True)
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise


def stop(settings: Settings) -> str:
    """Stop the process that serves from the home folder, and return a line that says so."""
    pid = running_pid(settings)
    if pid is None:
        return f"nothing runs in {settings.home_folder}"
    if sys.platform != "linux":
        os.kill(pid, signal.SIGTERM)
        wait_until("everything to stop", lambda: running_pid(settings) != pid)
        return f"stopped (process {pid})"
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        wait_until("everything to stop", lambda: bool(select([process], [], [], 0)[0]))
    finally:
        os.close(process)
    return f"stopped (process {pid})"
