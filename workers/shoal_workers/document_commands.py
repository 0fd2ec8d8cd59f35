"""The commands `shoal index add` and `shoal index remove`: documents of an index that is served."""

from typing import TYPE_CHECKING

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.process.progress import Progress
from shoal.settings import Settings

if TYPE_CHECKING:
    from shoal.client.redis.async_client import AsyncClient
    from shoal.client.redis.client import Client
    from shoal.client.redis.index_writer import IndexWriter


@click.command()
@click.argument("index_name", metavar="INDEX")
@click.argument("source")
@click.option("--text-column", help="Column to embed and search. [default: text, else the only candidate]")
@click.option("--id-column", default="id", show_default=True, help="Column of the documents' ids.")
@settings_options(*REDIS_SETTINGS, "max_text_chars")
def add(settings: Settings, index_name: str, source: str, text_column: str | None, id_column: str) -> None:
    """Add the documents in SOURCE to INDEX, a name, while it is served: at most 10,000.

    Each takes the place of the one that has its id. Searches find them within 2 s. SOURCE is a file as of a build.
    """
    from shoal.records.source import Source
    from shoal.records.source_file import SourceRules

    documents = Source(
        source,
        text_column,
        id_column,
        max_text_chars=settings.max_text_chars,
        rules=SourceRules.from_settings(settings),
    )
    with _client(settings) as client, Progress("adding documents"):
        found = list(documents)
        num, _ = client.run(lambda own: _writer(own, settings, index_name).add(found))
    click.echo(f"documents added to {index_name}: {num:,}")


@click.command()
@click.argument("index_name", metavar="INDEX")
@click.argument("ids", nargs=-1, required=True)
@settings_options(*REDIS_SETTINGS)
def remove(settings: Settings, index_name: str, ids: tuple[str, ...]) -> None:
    """Remove the documents with these IDS from INDEX, a name, while it is served."""
    with _client(settings) as client:
        num, _ = client.run(lambda own: _writer(own, settings, index_name).delete(ids))
    click.echo(f"ids removed from {index_name}, with their documents if there are any: {num:,}")


def _client(settings: Settings) -> "Client":
    from shoal.client.redis.client import Client

    return Client.from_settings(settings)


def _writer(client: "AsyncClient", settings: Settings, name: str) -> "IndexWriter":
    return client.writer(name, max_text_chars=settings.max_text_chars)
