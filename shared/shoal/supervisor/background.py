"""`shoal serve` in the background: started as a process of its own, and stopped.

It loads little, as the process that serves does all the work.
"""

import math
import os
import signal
import subprocess
import sys
from select import select

import click

from shoal.errors import NotReady, parse
from shoal.settings import Settings
from shoal.supervisor.pidfile import already_serving, running_pid
from shoal.supervisor.wait import wait_until

#: Beginning of the last line of the summary, which is printed once everything is ready.
LAST_LINE = "stop:   "


def detach(settings: Settings, *, query: str | None = None) -> None:
    """Run `serve` in a process of its own, and return once it is ready.

    Ctrl-C ends the start. Raises the error with which the process ends, or NotReady with the end of its log.
    """
    if pid := running_pid(settings):
        raise already_serving(settings, pid)
    logfile = settings.home_folder / "serve.log"
    logfile.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "shoal", "serve", "--log", str(logfile), *(["--try", query] if query else [])]
    environment = os.environ | settings.to_environment() | {"PYTHONUNBUFFERED": "1"}
    with logfile.open("ab") as output:  # a second start at the same moment must not overwrite what the first writes
        output.truncate(0)
        process = subprocess.Popen(
            command, env=environment, start_new_session=True, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )

    def has_summary() -> bool:
        printed = logfile.read_text()
        if process.poll() is not None:
            error = parse(printed.rstrip().rpartition("\n")[2])
            raise error or NotReady(f"the service did not start: {logfile} ends with:\n{printed[-2_000:].rstrip()}")
        return f"\n{LAST_LINE}" in printed

    try:
        wait_until("the service", has_summary, within_s=math.inf)  # the process has limits of its own
    except KeyboardInterrupt:
        click.echo("stopping …", err=True)
        process.terminate()
        process.wait()
        raise
    click.echo(logfile.read_text(), nl=False)


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
