"""`shoal serve` in the foreground: runs the supervisor, and prints a summary once everything is ready."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from shoal.errors import BadSetting, NotReady
from shoal.index_folder import CURRENT
from shoal.settings import Settings
from shoal.supervisor.background import hold, make_home
from shoal.supervisor.supervisor import Supervisor


def with_sample(settings: Settings) -> Settings:
    """Return settings with the index of sample headlines, which is built unless it exists. Raises NotReady."""
    make_home(settings)
    folder = settings.home_folder / "sample"
    if "," in str(folder):
        raise BadSetting(f"{settings.home_folder} has a comma, which separates indexes: choose another --home")
    if not (folder / CURRENT).exists():
        command = [sys.executable, "-m", "shoal", "index", "build", "--local", "--out", str(folder)]
        if subprocess.run(command, env=os.environ | settings.to_environment()).returncode:
            raise NotReady("the sample headlines were not indexed: see the lines above, or name an index with --index")
    return replace(settings, indexes=f"default={folder}")  # with a name, because the path may contain an equals sign


def serve(settings: Settings, *, query: str | None = None, log: Path | None = None) -> None:
    """Run all processes until Ctrl-C, SIGTERM or the end of the terminal. Print a summary once they are ready.

    Raises BadSetting.
    """
    hold(settings)
    supervisor = Supervisor(settings)
    supervisor.check()
    signal.signal(signal.SIGTERM, lambda *_: supervisor.ask_to_stop())
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores the end of the terminal
        signal.signal(signal.SIGHUP, lambda *_: supervisor.ask_to_stop())
    signal.signal(signal.SIGINT, lambda *_: supervisor.ask_to_stop(impatiently=True))
    try:
        supervisor.start()
        from shoal.supervisor.summary import print_summary  # loads the client while processes start

        supervisor.wait_until_ready()
        print_summary(supervisor.settings, query, log, supervisor.pids)
        supervisor.watch()
    finally:
        with suppress(OSError):  # the terminal, or the reader of the pipe, may be gone already
            click.echo("stopping …", err=True)
        supervisor.stop()
