"""`shoal serve` in the background, and the locked pid file that allows only one `shoal serve` for each home folder."""

import fcntl
import math
import os
import signal
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import click

from shoal.errors import BadSetting, NotReady, parse
from shoal.process.progress import wait_until
from shoal.settings import Settings

#: Beginning of the last line of the summary, which `shoal serve` prints once everything is ready.
LAST_LINE = "stop:   "

PID_FILE = "serve.pid"


def detach(settings: Settings) -> Path | None:
    """Fork a background process. Return the log file there, and None in this process once the service is ready."""
    if pid := running_pid(settings):
        raise _already_serving(settings, pid)
    make_home(settings)
    logfile = settings.home_folder / "serve.log"
    # Opened to append, because a second start at the same moment must not overwrite the lines of the first start.
    output = os.open(logfile, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.truncate(output, 0)
    if not (pid := os.fork()):  # a fork starts at once, with all modules loaded
        _leave_terminal(output)
        return logfile
    os.close(output)
    _wait_for_summary(pid, logfile)
    click.echo(logfile.read_text(errors="replace"), nl=False)
    return None


def _leave_terminal(output: int) -> None:
    """Begin a session with an empty input and the given output, and close all other open files of this process."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with suppress(OSError):  # the descriptor with which the folder was listed is closed by now
                os.close(int(name))


def _wait_for_summary(pid: int, logfile: Path) -> None:
    def has_summary() -> bool:
        has_ended = bool(os.waitpid(pid, os.WNOHANG)[0])  # asked before the read, so that the last error is in the file
        printed = logfile.read_text(errors="replace")
        if has_ended:
            error = parse(printed.rstrip().rpartition("\n")[2])
            raise error or NotReady(f"the service did not start: {logfile} ends with:\n{printed[-2_000:].rstrip()}")
        return f"\n{LAST_LINE}" in printed

    try:
        wait_until("the service", has_summary, within_s=math.inf)  # the process itself has a time limit
    except KeyboardInterrupt:
        click.echo("stopping …", err=True)
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise


def stop(settings: Settings) -> str:
    """Stop the process that serves from the home folder, and return a message for the user."""
    pid = running_pid(settings)
    if pid is None:
        return f"nothing runs in {settings.home_folder}"
    os.kill(pid, signal.SIGTERM)
    wait_until("everything to stop", lambda: running_pid(settings) != pid)
    return f"stopped (process {pid})"


def hold(settings: Settings) -> None:
    """Lock the pid file until this process ends. Raises BadSetting if another process has locked it."""
    make_home(settings)
    file = os.open(settings.home_folder / PID_FILE, os.O_RDWR | os.O_CREAT, 0o666)  # stays open until the process ends
    if not _lock(file):
        raise _already_serving(settings, running_pid(settings))
    os.truncate(file, 0)
    os.write(file, str(os.getpid()).encode())


def make_home(settings: Settings) -> None:
    """Make the home folder unless it exists. Raises BadSetting if it cannot be written."""
    home = settings.home_folder
    try:
        home.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise BadSetting(f"{home} cannot be written ({error.strerror}): choose another folder with --home") from error


def running_pid(settings: Settings) -> int | None:
    """Return the id of the process that serves from the home folder, or None if no process does."""
    with suppress(FileNotFoundError), (settings.home_folder / PID_FILE).open("r+") as file:
        return None if _lock(file.fileno()) else int(file.read() or 0) or None
    return None


def _already_serving(settings: Settings, pid: int | None) -> BadSetting:
    process = f"process {pid}" if pid else "another process"
    remedy = "stop it first, by this command with --stop; or start a second service, with another --home and --port"
    return BadSetting(f"{process} serves from {settings.home_folder} already: {remedy}")


def _lock(file: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
