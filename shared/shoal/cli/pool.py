"""The commands `shoal status` and `shoal top`: show the pool once, or live."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from socket import gethostname
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.cli.output import echo
from shoal.settings import Settings

if TYPE_CHECKING:
    from shoal.cli.pool_screen import Reader

#: The fields of a heartbeat that say how a worker computes.
_COMPUTES = ("state", "model", "engine", "precision")

#: Longest wait for an answer of the API, in seconds.
ANSWER_S = 5.0

#: Largest number of long jobs that `shoal top` reads from Redis.
MAX_LONG_JOBS = 20


@click.command()
@click.option("--this-worker", is_flag=True, help="End with 1 unless a worker of this machine or container is alive.")
@settings_options(*REDIS_SETTINGS)
def status(settings: Settings, this_worker: bool) -> None:
    """Show the living workers and the number of unanswered jobs.

    Each worker is listed with its indexes and their errors.
    """
    from shoal.client.redis.client import Client  # imported late: it loads numpy
    from shoal.viewers.pool_meter import PoolSnapshot

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


@click.command()
@click.option("--url", help="Ask the API at this address in place of Redis.")
@click.option("--key", envvar="SHOAL_API_KEY", help="API key, with --url [SHOAL_API_KEY].")
@click.option(
    "--every", "every_s", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds between two looks."
)
@settings_options(*REDIS_SETTINGS)
def top(settings: Settings, url: str | None, key: str | None, every_s: float) -> None:
    """Show lanes, rates, workers and long jobs, live.

    Ctrl-C ends it. Without a terminal, the command prints the pool once, and ends.
    """
    from shoal.cli.pool_screen import print_pool, watch_pool  # imported late: it loads rich

    with _over_http(url, key or "") if url else _over_redis(settings) as read:
        if sys.stdin.isatty() and sys.stdout.isatty():
            with suppress(KeyboardInterrupt):
                watch_pool(url or f"pool {settings.pool}", read, every_s)
        else:
            print_pool(read)


@contextmanager
def _over_redis(settings: Settings) -> Iterator["Reader"]:
    from shoal.client.redis.client import Client  # imported late: it loads numpy
    from shoal.viewers.pool_meter import PoolMeter, PoolSnapshot

    with Client.from_settings(settings) as client:
        meter, jobs = PoolMeter(), client.long_jobs

        def read() -> Mapping[str, Any]:
            pool = meter.measure(client.run(lambda own: PoolSnapshot.take(own.queue)))
            found = [] if jobs.is_empty() else jobs.list(limit=MAX_LONG_JOBS)
            return pool | {"long_jobs": [each.to_map() for each in found]}

        yield read


@contextmanager
def _over_http(url: str, key: str) -> Iterator["Reader"]:
    from shoal.client.http.client import HttpClient

    with HttpClient(url, key, timeout_s=ANSWER_S) as client:
        yield lambda: client.ask("GET", "/v1/pool").values()
