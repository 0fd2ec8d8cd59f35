"""The command `shoal search`."""

import json
from typing import Any

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.client.redis.client import Client
from shoal.errors import UnknownIndex
from shoal.settings import Settings


@click.command()
@click.argument("queries", nargs=-1, required=True)
@click.option("-k", default=5, show_default=True, help="Hits for each query.")
@click.option("--index", default="default", show_default=True, help="Index to search.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list of hits a query.")
@settings_options(*REDIS_SETTINGS)
def search(settings: Settings, queries: tuple[str, ...], k: int, index: str, as_json: bool) -> None:
    """Find the documents nearest in meaning to each of QUERIES."""
    with Client.from_settings(settings) as client:
        for hits in _search(client, queries, k, index):
            if as_json:
                click.echo(json.dumps(hits, ensure_ascii=False))
                continue
            for hit in hits:
                click.echo(f"{hit['score']:.3f}  {hit['text']}")


def _search(client: Client, queries: tuple[str, ...], k: int, index: str) -> list[list[dict[str, Any]]]:
    try:
        return client.search(queries, k=k, index=index)
    except UnknownIndex as error:
        raise UnknownIndex(
            f"{error.message}; name one with --index, which is served once its build is published"
        ) from error
