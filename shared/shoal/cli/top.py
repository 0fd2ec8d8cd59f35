"""The command `shoal top`: the pool in a terminal, live."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.settings import Settings

if TYPE_CHECKING:
    from shoal.cli.shown.pool_screen import Reader

#: Longest that an API may take to answer, in seconds.
ANSWER_S = 5.0

#: Most long jobs that are read from Redis.
MAX_LONG_JOBS = 20


@click.command()
@click.option("--url", help="Ask the API at this address in place of Redis.")
@click.option("--key", envvar="SHOAL_API_KEY", help="API key, with --url [SHOAL_API_KEY].")
@click.option("--every", "every_s", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds a look.")
@settings_options(*REDIS_SETTINGS)
def top(settings: Settings, url: str | None, key: str | None, every_s: float) -> None:
    """Show lanes, rates, workers and long jobs, live.

    The key q quits, p pauses, and s sorts the workers. Without a terminal it prints what there is at this moment, and
    ends.
    """
    from shoal.cli.shown.pool_screen import print_pool, watch_pool  # which load rich

    with _over_http(url, key or "") if url else _over_redis(settings) as read:
        if sys.stdin.isatty() and sys.stdout.isatty():
            with suppress(KeyboardInterrupt):
                watch_pool(url or f"pool {settings.pool}", read, every_s)
        else:
            print_pool(read)


@contextmanager
def _over_redis(settings: Settings) -> Iterator["Reader"]:
    from shoal.client.redis.client import Client  # which loads numpy
    from shoal.viewers.pool_meter import PoolMeter
    from shoal.viewers.pool_snapshot import PoolSnapshot

    with Client.from_settings(settings) as client:
        meter, jobs = PoolMeter(), client.long_jobs

        def read() -> Mapping[str, Any]:
            pool = meter.measure(client.run(lambda own: PoolSnapshot.take(own.queue)))
            found = [] if jobs.is_empty() else jobs.list(limit=MAX_LONG_JOBS)
            return pool | {"long_jobs": [status.to_map() for status in found]}

        yield read


@contextmanager
def _over_http(url: str, key: str) -> Iterator["Reader"]:
    from shoal.client.http.client import HttpClient

    with HttpClient(url, key, timeout_s=ANSWER_S) as client:
        yield lambda: client.ask("GET", "/v1/pool").values()
