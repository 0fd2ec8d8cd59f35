"""`shoal serve` in the foreground: runs the supervisor, and prints a summary once everything is ready."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from shoal.errors import BadSetting, NotReady, ShoalError
from shoal.index_folder import CURRENT
from shoal.process.listen_address import api_url
from shoal.process.printable import printable
from shoal.settings import DEFAULTS, Settings
from shoal.supervisor.background import LAST_LINE, hold, make_home
from shoal.supervisor.supervisor import Supervisor

#: The query of the summary.
QUERY = "europe climate change storm"


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


def serve(settings: Settings, log: Path | None = None) -> None:
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
        import shoal.client.redis.client  # noqa: F401 - a slow import, made while the processes start

        supervisor.wait_until_ready()
        print_summary(supervisor.settings, log, supervisor.pids)
        supervisor.watch()
    finally:
        with suppress(OSError):  # the terminal, or the reader of the pipe, may be gone already
            click.echo("stopping …", err=True)
        supervisor.stop()


def print_summary(settings: Settings, log: Path | None = None, pids: Collection[int] = ()) -> None:
    """Print the parts of the service, hits of `QUERY`, a curl command, and how to stop; `pids` are its processes."""
    from shoal.broker.connections import printable_url
    from shoal.client.redis.client import Client

    ready, trouble = f"{settings.workers} workers", ""
    hits: Sequence[Mapping[str, Any]] = []
    with Client.from_settings(settings) as client:
        try:
            ready = _described(client.pool.own_ready(pids) or client.pool.ready())
            if "default" in settings.index_folders() and settings.workers:
                hits = client.search(QUERY, k=3)
        except ShoalError as error:
            trouble = error.message
    click.echo(f"ready:  {ready}")
    click.echo(f"API:    {api_url(settings)}, with a page for browsers at the same address")
    click.echo(f"Redis:  {printable_url(settings.redis_address)}")
    click.echo(f"data:   {settings.home_folder}{f', log {log}' if log else ''}")
    if settings.home_folder != DEFAULTS.home_folder:
        click.echo(f"        other commands find this service by --home {shlex.quote(str(settings.home_folder))}")
    if trouble:
        click.echo(f"search: no answer yet: {printable(trouble)}")
    elif hits:
        click.echo(f"search: {QUERY}")
    for hit in hits:
        click.echo(f"  {hit['score']:.3f}  {printable(hit['text'])}")
    path, body = ("search", {"queries": QUERY, "k": 3}) if hits else ("embed", {"inputs": QUERY})
    key = '-H "authorization: Bearer $YOUR_KEY" ' if settings.api_keys_file else ""
    command = f"curl -s {api_url(settings)}/{path} {key}-H 'content-type: application/json' -d '{json.dumps(body)}'"
    click.echo(f"try:    {command}")
    click.echo(f"{LAST_LINE}{'the same command with --stop in place of --detach' if log else 'Ctrl-C'}")


def _described(workers: Mapping[str, Mapping[str, Any]]) -> str:
    if not workers:
        return "no worker runs, and requests are refused until one does: start one with `shoal worker`"
    about = next(iter(workers.values()))
    indexes = [f"index {name} with {index['count']:,} documents" for name, index in about.get("indexes", {}).items()]
    number = f"{len(workers)} worker{'s' * (len(workers) > 1)}"
    reranker = [f"reranker {about['reranker']}"] if about.get("reranker") else []
    engine = f"{about.get('engine')} {about.get('precision')}"
    return ", ".join([f"{number} with {about.get('model')} on {engine}", *reranker, *(indexes or ["no index"])])
