"""The command `shoal status`."""

import sys
from importlib.util import find_spec

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.cli.shown.output import echo
from shoal.client.redis.client import Client
from shoal.settings import Settings

#: The parts of a heartbeat that say what computes for a worker.
_COMPUTES = ("state", "model", "engine", "precision")


@click.command()
@settings_options(*REDIS_SETTINGS)
def status(settings: Settings) -> None:
    """Show the workers alive, their indexes and how many jobs wait.

    Indexes are shown with what is wrong with them. In a terminal there are tables.
    """
    with Client.from_settings(settings) as client:
        if sys.stdout.isatty() and find_spec("rich"):
            _print_tables(client)
            return
        for lane, load in client.run(lambda own: own.queue.loads()).items():
            echo(f"lane {lane}: {load.num_jobs:,} unanswered jobs, {load.num_texts:,} texts")
        unread = client.run(lambda own: own.queue.unread_load())
        echo(f"results not read: {unread.num_results:,}, {unread.num_bytes:,} bytes")
        echo(f"dead letters: {client.run(lambda own: own.queue.num_dead()):,}")
        workers = client.pool.workers()
        echo(f"workers alive: {len(workers)}")
        for worker_id, about in workers.items():
            names = ", ".join(f"{name} ({index['count']:,})" for name, index in about.get("indexes", {}).items())
            computes = " ".join(str(about[name]) for name in _COMPUTES if about.get(name)) or "unknown"
            echo(f"  {worker_id} {computes}: {names or 'no index'}")
            for name, message in about.get("index_errors", {}).items():
                echo(f"    index {name}: {message}")


def _print_tables(client: Client) -> None:
    from rich.console import Console

    from shoal.cli.shown.pool_table import index_table, pool_tables
    from shoal.viewers.pool_history import PoolHistory

    history = PoolHistory()
    client.run(lambda own: history.sample(own.queue))
    console, unread = Console(), client.run(lambda own: own.queue.unread_load())
    console.print(pool_tables(history.snapshot()))
    console.print(index_table(client.pool.workers()))
    console.print(f"results not read: {unread.num_results:,}, {unread.num_bytes:,} bytes")
