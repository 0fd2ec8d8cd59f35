"""The command `shoal status`: show the pool."""

import sys
from socket import gethostname

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.cli.output import echo
from shoal.settings import Settings


@click.command()
@click.option("--this-worker", is_flag=True, help="End with 1 unless a worker of this machine or container is alive.")
@settings_options(*REDIS_SETTINGS)
def status(settings: Settings, this_worker: bool) -> None:
    """Show the living workers and the number of unanswered jobs.

    Each worker is listed with its indexes and their errors.
    """
    from shoal.client.redis.client import Client  # imported late, because it loads numpy

    with Client.from_settings(settings) as client:
        workers = client.pool.workers()
        if this_worker:
            sys.exit(gethostname() not in {about.get("host") for about in workers.values()})
        loads = client.run(lambda own: own.queue.loads())
        unread = client.run(lambda own: own.queue.unread_load())
        num_dead = client.run(lambda own: own.queue.num_dead())
    for lane, load in loads.items():
        echo(f"lane {lane}: {load.num_jobs:,} unanswered jobs, {load.num_texts:,} texts")
    echo(f"results not read: {unread.num_results:,}, {unread.num_bytes:,} bytes")
    echo(f"dead letters: {num_dead:,}")
    echo(f"workers alive: {len(workers)}")
    for worker_id, about in workers.items():
        names = ", ".join(f"{name} ({index['count']:,})" for name, index in about.get("indexes", {}).items())
        known = [about.get(name) for name in ("state", "model", "engine", "precision")]
        computes = " ".join(str(value) for value in known if value) or "unknown"
        echo(f"  {worker_id} {computes}: {names or 'no index'}")
        for name, message in about.get("index_errors", {}).items():
            echo(f"    index {name}: {message}")
