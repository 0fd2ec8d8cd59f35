"""`shoal serve`: runs the supervisor in the foreground or the background, and stops the one in the background."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from select import select
from typing import Any

import click

from shoal.address import api_url
from shoal.broker.connections import shown
from shoal.errors import NotReady
from shoal.settings import Settings
from shoal.supervisor.pidfile import already_serving, hold, running_pid
from shoal.supervisor.supervisor import Supervisor
from shoal.supervisor.wait import wait_until

#: Beginning of the last line of the summary, which is printed once everything is ready.
_LAST_LINE = "stop:   "


def serve(settings: Settings, *, query: str | None = None, log: Path | None = None) -> None:
    """Run Redis, the API and the workers until Ctrl-C or SIGTERM; search for `query` once they are ready.

    `log` is the file that the output goes to, if this process runs in the background.

    Raises BadSetting if a process serves from the same home folder already.
    """
    with hold(settings):
        supervisor = Supervisor(settings)
        supervisor.check_ports()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # which ends the process that prepares the model
        _prepare_model(settings)
        signal.signal(signal.SIGTERM, lambda *_: supervisor.ask_to_stop())
        signal.signal(signal.SIGINT, lambda *_: supervisor.ask_to_stop(impatiently=True))
        try:
            supervisor.start()
            _print_summary(settings, query, log)
            supervisor.watch()
        finally:
            with suppress(OSError):  # the terminal, or the program that reads this, may be gone already
                click.echo("stopping …", err=True)
            supervisor.stop()


def detach(settings: Settings, *, query: str | None = None) -> None:
    """Run `serve` in a process of its own, and return once it is ready.

    Raises BadSetting as `serve` does, and NotReady with the end of its log if the process ends.
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
        if process.poll() is not None:
            raise NotReady(f"the service did not start: {logfile} ends with:\n{logfile.read_text()[-2_000:].rstrip()}")
        return f"\n{_LAST_LINE}" in logfile.read_text()

    wait_until("the service", has_summary, within_s=math.inf)  # the process has limits of its own
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


def _prepare_model(settings: Settings) -> None:
    if settings.workers:
        command = [sys.executable, "-m", "shoal", "model", "prepare"]
        done = subprocess.run(command, env=os.environ | settings.to_environment(), stdout=subprocess.DEVNULL)
        if done.returncode:
            raise NotReady("the model could not be prepared: the line above says why")


def _print_summary(settings: Settings, query: str | None, log: Path | None) -> None:
    """Print what runs where, the hits of a search if there is an index, a curl command to copy, and how to stop."""
    from shoal.client import Client

    query = query or "europe climate change storm"
    hits = []
    with Client.from_settings(settings) as client:
        click.echo(f"ready:  {_described(client.pool.ready())}")
        click.echo(f"API:    {api_url(settings)}, with a page to try it at {api_url(settings)}/docs")
        click.echo(f"Redis:  {shown(settings.redis_url)}")
        click.echo(f"data:   {settings.home_folder}{f', log {log}' if log else ''}")
        if "default" in settings.index_folders() and settings.workers:
            hits = client.search(query, k=3)
            click.echo(f"search: {query}")
    for hit in hits:
        click.echo(f"  {hit['score']:.3f}  {hit['text']}")
    path, body = ("search", {"queries": query, "k": 3}) if hits else ("embed", {"inputs": query})
    key = '-H "authorization: Bearer $YOUR_KEY" ' if settings.api_keys_file else ""
    data = json.dumps(body).replace("'", r"\u0027")  # it stands between single quotes
    click.echo(f"try:    curl -s {api_url(settings)}/{path} {key}-H 'content-type: application/json' -d '{data}'")
    click.echo(f"{_LAST_LINE}{'the same command with --stop in place of --detach' if log else 'Ctrl-C'}")


def _described(workers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the number of workers, with the model and the indexes of one, in words."""
    if not workers:
        return "no workers"
    about = next(iter(workers.values()))
    indexes = [f"index {name} with {index['count']:,} documents" for name, index in about.get("indexes", {}).items()]
    number = f"{len(workers)} worker{'s' * (len(workers) > 1)}"
    return ", ".join([f"{number} with {about.get('model')}", *(indexes or ["no index"])])
