"""`shoal serve`: runs the supervisor in the foreground or the background, and stops the one in the background."""

import json
import os
import signal
import subprocess
import sys
from select import select

import click

from shoal.broker.connections import shown
from shoal.errors import NotReady
from shoal.settings import Settings
from shoal.supervisor.pidfile import already_serving, hold, running_pid
from shoal.supervisor.supervisor import Supervisor, api_url
from shoal.supervisor.wait import wait_until


def serve(settings: Settings, *, query: str | None = None) -> None:
    """Run Redis, the API and the workers until Ctrl-C or SIGTERM; search for `query` once they are ready.

    Raises BadSetting if a process serves from the same home folder already.
    """
    with hold(settings):
        supervisor = Supervisor(settings)
        supervisor.check_ports()
        _prepare_model(settings)
        signal.signal(signal.SIGTERM, lambda *_: supervisor.ask_to_stop())
        signal.signal(signal.SIGINT, lambda *_: supervisor.ask_to_stop(impatiently=True))
        try:
            supervisor.start()
            _greet(settings, query)
            supervisor.watch()
        finally:
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
    command = [sys.executable, "-m", "shoal", "serve", *(["--try", query] if query else [])]
    environment = os.environ | settings.to_environment() | {"PYTHONUNBUFFERED": "1"}
    with logfile.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, start_new_session=True, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )

    def has_greeted() -> bool:
        if process.poll() is not None:
            raise NotReady(f"it did not start; {logfile} ends with:\n{logfile.read_text()[-2_000:]}")
        return "curl" in logfile.read_text()

    wait_until("it to be ready", has_greeted)
    click.echo(logfile.read_text(), nl=False)
    click.echo(
        f"running in the background (process {process.pid}, log {logfile}); end it with --stop in place of --detach"
    )


def stop(settings: Settings) -> str:
    """Stop the process that serves from the home folder, and return a line that says so."""
    pid = running_pid(settings)
    if pid is None:
        return f"nothing runs in {settings.home_folder}"
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


def _greet(settings: Settings, query: str | None) -> None:
    """Print the addresses, the hits of a search if there is an index, and a curl command that can be copied."""
    from shoal.client import Client

    click.echo(f"ready: {api_url(settings)} (pages at /docs), Redis at {shown(settings.redis_url)}")
    query = query or "europe climate change storm"
    if "default" in settings.index_folders() and settings.workers:
        with Client.from_settings(settings) as client:
            click.echo(f"search: {query}")
            for hit in client.search(query, k=3):
                click.echo(f"  {hit['score']:.3f}  {hit['text']}")
        path, body = "search", {"queries": query, "k": 3}
    else:
        path, body = "embed", {"inputs": query}
    key = '-H "authorization: Bearer $YOUR_KEY" ' if settings.api_keys_file else ""
    url, data = f"{api_url(settings)}/{path}", json.dumps(body)
    click.echo(f"try: curl -s {url} {key}-H 'content-type: application/json' -d '{data}'")
