"""The command `shoal search`."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.cli.shown.output import echo, echo_lines
from shoal.client.redis.client import Client
from shoal.errors import UnknownIndex
from shoal.operations.search_options import MAX_TOP_N, MODES, SEARCH_DEFAULTS
from shoal.settings import Settings


class JsonValue(click.ParamType[Any]):
    """A value in JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value; end the command with a message if it is no JSON."""
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            self.fail(f"{value[:80]!r} is no JSON", param, ctx)


class Reranked(click.IntRange):
    """A number of hits to rerank, as the option `rerank` has it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the option."""
        return {"top_n": super().convert(value, param, ctx)}


#: The flags of the options of a search, by their names, and the arguments with which `click` makes them.
_FLAGS: dict[str, dict[str, Any]] = {
    "mode": {"type": click.Choice(MODES), "help": "Rank by meaning, by words, or by both."},
    "alpha": {"type": click.FloatRange(0, 1), "help": "Share of the meaning in a hybrid search."},
    "filter": {"type": JsonValue(), "help": "Condition on fields that each hit fulfils."},
    "sort": {"type": JsonValue(), "help": "Fields by which hits are ordered instead of by score."},
    "boost": {"type": JsonValue(), "help": "Fields whose values raise or lower the score."},
    "group_by": {"help": "Field whose equal values make a group; empty: no groups."},
    "group_size": {"type": int, "help": "Most hits of a group."},
    "facets": {"multiple": True, "metavar": "FIELD", "help": "Field whose values are counted."},
    "facets_top_n": {"type": click.IntRange(1, MAX_TOP_N), "help": "Count the values of the best N documents alone."},
    "fields": {"multiple": True, "metavar": "FIELD", "help": "Field that hits have beside id and score."},
    "snippet": {"type": JsonValue(), "help": "Show the passage of each hit that fits best."},
    "cursor": {"help": "Page to print: empty for the first one, then as printed."},
    "min_score": {"type": float, "help": "Least score of a hit."},
    "explain": {"is_flag": True, "help": "Tell what each score is made of; with --json."},
    "like": {"multiple": True, "metavar": "ID", "help": "Document that hits are to be like."},
    "vectors": {"type": JsonValue(), "help": "Vectors to search for."},
    "negative": {"multiple": True, "metavar": "TEXT", "help": "Text that hits are not to be like."},
    "fuse": {"is_flag": True, "help": "Print one list of hits for all that is asked together."},
    "rerank": {"type": Reranked(1), "metavar": "N", "help": "Let the reranker order the best N hits."},
    "diversity": {"type": click.FloatRange(0, 1), "help": "How much hits differ from each other."},
}


def _search_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with a flag for each option of a search."""
    for name, arguments in reversed(_FLAGS.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, **arguments)(command)
    return command


@click.command()
@click.argument("queries", nargs=-1)
@click.option("-k", default=5, show_default=True, help="Hits for each query.")
@click.option("--index", default="default", show_default=True, help="Index to search.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list of hits a query, or a map if there is more.")
@_search_flags
@settings_options(*REDIS_SETTINGS)
def search(settings: Settings, queries: tuple[str, ...], k: int, index: str, as_json: bool, **flags: Any) -> None:
    """Find the best documents for each of QUERIES."""
    given = {name: value for name, value in flags.items() if value not in (None, (), SEARCH_DEFAULTS.get(name))}
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    if not queries and not {"like", "vectors"} & options.keys():
        raise click.UsageError("Missing argument 'QUERIES...', or --like, or --vectors.")
    with Client.from_settings(settings) as client:
        for found in _search(client, queries, k, index, options):
            if as_json:
                echo(_json(found if len(found) > 1 else found["hits"]))
            else:
                _print(found, flags["fields"])


def _print(found: dict[str, Any], fields: Sequence[str]) -> None:
    """Print a list of hits for people to read, with the fields that were asked for."""
    for hit in found["hits"]:
        values = [f"{name}: {_json(hit[name])}" for name in fields if name != "text" and name in hit]
        echo_lines("  ".join([f"{hit['score']:.3f}", hit["id"], *_shown(hit), *values]))
    for field, counts in found.get("facets", {}).items():
        values = [f"{_json(one['value'])} {one['count']:,}" for one in counts["values"]]
        echo(f"{field}: {', '.join(values)}")
    if found.get("cursor"):
        echo(f"next page: --cursor {found['cursor']}")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _shown(hit: dict[str, Any]) -> Iterator[str]:
    """Yield the title of a hit, and its best passage if that was asked for, else its text."""
    passage = hit.get("snippet")
    text = passage["text"] if isinstance(passage, dict) and "highlights" in passage else hit.get("text")
    yield from (value for value in (hit.get("title"), text) if isinstance(value, str) and value)


def _search(
    client: Client, queries: Sequence[str], k: int, index: str, options: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return for each list its hits, and what else is asked for."""
    try:
        reply = client.find(queries, k=k, index=index, **options)
    except UnknownIndex as error:
        raise UnknownIndex(
            f"{error.message}; name one with --index, which is served once its build is published"
        ) from error
    columns = {"hits": reply.hits, "cursor": reply.cursors, "total": reply.totals, "facets": reply.facets}
    known = {name: column for name, column in columns.items() if column is not None}
    return [dict(zip(known, row, strict=True)) for row in zip(*known.values(), strict=True)]
