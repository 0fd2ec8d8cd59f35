"""`shoal serve`: runs the supervisor, and prints a summary once everything is ready."""

import signal
from contextlib import suppress
from pathlib import Path

import click

from shoal.settings import Settings
from shoal.supervisor.pidfile import hold
from shoal.supervisor.supervisor import Supervisor


def serve(settings: Settings, *, query: str | None = None, log: Path | None = None) -> None:
    """Run Redis, the API and the workers until Ctrl-C or SIGTERM; search for `query` once they are ready.

    `log` is the file that the output goes to, if this process runs in the background.

    Raises BadSetting if a process serves from the same home folder already, and what `Supervisor` raises.
    """
    with hold(settings):
        supervisor = Supervisor(settings)
        supervisor.check()
        signal.signal(signal.SIGTERM, lambda *_: supervisor.ask_to_stop())
        signal.signal(signal.SIGINT, lambda *_: supervisor.ask_to_stop(impatiently=True))
        try:
            supervisor.start()
            from shoal.supervisor.summary import print_summary  # with the client, which loads while the others start

            supervisor.wait_until_ready()
            print_summary(supervisor.settings, query, log, supervisor.pids)
            supervisor.watch()
        finally:
            with suppress(OSError):  # the terminal, or the program that reads this, may be gone already
                click.echo("stopping …", err=True)
            supervisor.stop()
