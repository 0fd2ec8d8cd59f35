"""The command `shoal status`."""

import sys
from socket import gethostname

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.cli.shown.output import echo
from shoal.client.redis.client import Client
from shoal.settings import Settings
from shoal.viewers.pool_snapshot import PoolSnapshot

#: The parts of a heartbeat that say what computes for a worker.
_COMPUTES = ("state", "model", "engine", "precision")


@click.command()
@click.option("--this-worker", is_flag=True, help="End with 1 unless a worker of this machine or container is alive.")
@settings_options(*REDIS_SETTINGS)
def status(settings: Settings, this_worker: bool) -> None:
    """Show the workers alive, their indexes and how many jobs wait.

    Indexes are shown with what is wrong with them.
    """
    with Client.from_settings(settings) as client:
        pool = client.run(lambda own: PoolSnapshot.take(own.queue))
    if this_worker:
        sys.exit(gethostname() not in {about.get("host") for about in pool.workers.values()})
    for lane, load in pool.loads.items():
        echo(f"lane {lane}: {load.num_jobs:,} unanswered jobs, {load.num_texts:,} texts")
    echo(f"results not read: {pool.unread.num_results:,}, {pool.unread.num_bytes:,} bytes")
    echo(f"dead letters: {pool.num_dead:,}")
    echo(f"workers alive: {len(pool.workers)}")
    for worker_id, about in pool.workers.items():
        names = ", ".join(f"{name} ({index['count']:,})" for name, index in about.get("indexes", {}).items())
        computes = " ".join(str(about[name]) for name in _COMPUTES if about.get(name)) or "unknown"
        echo(f"  {worker_id} {computes}: {names or 'no index'}")
        for name, message in about.get("index_errors", {}).items():
            echo(f"    index {name}: {message}")
