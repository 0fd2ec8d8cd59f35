"""`shoal serve`: runs the supervisor, and prints a summary once everything is ready."""

import json
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from shoal.address import api_url
from shoal.broker.connections import shown
from shoal.settings import Settings
from shoal.supervisor.background import LAST_LINE
from shoal.supervisor.pidfile import hold
from shoal.supervisor.supervisor import Supervisor


def serve(settings: Settings, *, query: str | None = None, log: Path | None = None) -> None:
    """Run Redis, the API and the workers until Ctrl-C or SIGTERM; search for `query` once they are ready.

    `log` is the file that the output goes to, if this process runs in the background.

    Raises BadSetting if a process serves from the same home folder already.
    """
    with hold(settings):
        supervisor = Supervisor(settings)
        supervisor.check_ports()
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
    click.echo(f"{LAST_LINE}{'the same command with --stop in place of --detach' if log else 'Ctrl-C'}")


def _described(workers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the number of workers, with the model and the indexes of one, in words."""
    if not workers:
        return "no workers"
    about = next(iter(workers.values()))
    indexes = [f"index {name} with {index['count']:,} documents" for name, index in about.get("indexes", {}).items()]
    number = f"{len(workers)} worker{'s' * (len(workers) > 1)}"
    return ", ".join([f"{number} with {about.get('model')}", *(indexes or ["no index"])])
