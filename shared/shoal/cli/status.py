"""The command `shoal status`."""

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.client.redis.client import Client
from shoal.settings import Settings


@click.command()
@settings_options(*REDIS_SETTINGS)
def status(settings: Settings) -> None:
    """Show the workers alive, their indexes and how many jobs wait.

    Indexes are shown with what is wrong with them.
    """
    with Client.from_settings(settings) as client:
        for lane, load in client.queue.loads().items():
            click.echo(f"lane {lane}: {load.num_jobs:,} unanswered jobs, {load.num_texts:,} texts")
        unread = client.queue.unread.load()
        click.echo(f"results not read: {unread.num_results:,}, {unread.num_bytes:,} bytes")
        click.echo(f"dead letters: {client.queue.num_dead():,}")
        workers = client.pool.workers()
        click.echo(f"workers alive: {len(workers)}")
        for worker_id, about in workers.items():
            names = ", ".join(f"{name} ({index['count']:,})" for name, index in about.get("indexes", {}).items())
            computes = " ".join(str(about.get(name)) for name in ("state", "model", "engine", "precision"))
            click.echo(f"  {worker_id} {computes}: {names or 'no index'}")
            for name, message in about.get("index_errors", {}).items():
                click.echo(f"    index {name}: {message}")
