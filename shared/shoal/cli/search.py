"""The commands `shoal search` and `shoal rerank`: find documents, and score texts for a query."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.cli.output import echo, echo_lines
from shoal.client.redis.client import Client
from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest
from shoal.operations.search_options import MAX_TOP_N, MODES, SEARCH_DEFAULTS
from shoal.settings import Settings


def json_value(text: str) -> Any:
    """Return the value of a flag that is JSON. End the command with a message if the flag is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise click.BadParameter(f"{text[:80]!r} is no JSON") from None


#: The options of a search that have flags, each with the arguments from which `click` makes the flag.
_FLAGS: dict[str, dict[str, Any]] = {
    "mode": {"type": click.Choice(MODES), "help": "Rank by meaning, by words, or by both."},
    "alpha": {"type": click.FloatRange(0, 1), "help": "Share of the meaning in a hybrid search."},
    "filter": {"type": json_value, "metavar": "JSON", "help": "Condition on fields that each hit fulfils."},
    "sort": {"type": json_value, "metavar": "JSON", "help": "Fields by which hits are ordered instead of by score."},
    "boost": {"type": json_value, "metavar": "JSON", "help": "Fields whose values raise or lower the score."},
    "group_by": {"help": "Field whose equal values make a group; empty: no groups."},
    "group_size": {"type": int, "help": "Maximum number of hits in a group."},
    "facets": {"multiple": True, "metavar": "FIELD", "help": "Field whose values are counted."},
    "facets_top_n": {"type": click.IntRange(1, MAX_TOP_N), "help": "Count the values of the best N documents only."},
    "fields": {"multiple": True, "metavar": "FIELD", "help": "Field that hits have besides id and score."},
    "snippet": {"type": json_value, "metavar": "JSON", "help": "Show the best passage of each hit."},
    "cursor": {"help": "Page to print: empty for the first page, then the printed cursor."},
    "min_score": {"type": float, "help": "Lowest score of a hit."},
    "explain": {"is_flag": True, "help": "Show the parts of each score; with --json."},
    "like": {"multiple": True, "metavar": "ID", "help": "Document that hits should resemble."},
    "vectors": {"type": json_value, "metavar": "JSON", "help": "Vectors to search for."},
    "negative": {"multiple": True, "metavar": "TEXT", "help": "Text that hits should not resemble."},
    "fuse": {"is_flag": True, "help": "Print one list of hits for all queries together."},
    "rerank": {"type": click.IntRange(1), "metavar": "N", "help": "Let the reranker order the best N hits."},
    "diversity": {"type": click.FloatRange(0, 1), "help": "How much hits should differ from each other."},
}


def _search_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, arguments in reversed(_FLAGS.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, **arguments)(command)
    return command


@click.command()
@click.argument("queries", nargs=-1)
@click.option("-k", default=5, show_default=True, help="Hits for each query.")
@click.option("--index", default="default", show_default=True, help="Index to search.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of hits for each query, or a map of results.")
@_search_options
@settings_options(*REDIS_SETTINGS)
def search(settings: Settings, queries: tuple[str, ...], k: int, index: str, as_json: bool, **flags: Any) -> None:
    """Find the best documents for each query."""
    given = {name: value for name, value in flags.items() if value not in (None, (), SEARCH_DEFAULTS.get(name))}
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    if not queries and not {"like", "vectors"} & options.keys():
        raise click.UsageError("Missing argument 'QUERIES...', or --like, or --vectors.")
    if "rerank" in options:
        options["rerank"] = {"top_n": options["rerank"]}
    with Client.from_settings(settings) as client:
        reply = client.find(queries, k=k, index=index, **options)
    _print_reply(reply, as_json, flags["fields"])


def _print_reply(reply: Reply, as_json: bool, fields: Sequence[str]) -> None:
    """Print each list of hits with the named fields, and the list's facets and cursor if the reply has them."""
    columns = {"hits": reply.hits, "cursor": reply.cursors, "total": reply.totals, "facets": reply.facets}
    asked = {name: column for name, column in columns.items() if column is not None}
    for row in zip(*asked.values(), strict=True):
        found: dict[str, Any] = dict(zip(asked, row, strict=True))
        if as_json:
            echo(_json(found if len(found) > 1 else found["hits"]))
            continue
        for hit in found["hits"]:
            passage = hit.get("snippet")
            text = passage["text"] if isinstance(passage, dict) and "highlights" in passage else hit.get("text")
            texts = [value for value in (hit.get("title"), text) if isinstance(value, str) and value]
            values = [f"{name}: {_json(hit[name])}" for name in fields if name != "text" and name in hit]
            echo_lines("  ".join([f"{hit['score']:.3f}", hit["id"], *texts, *values]))
        for field, counts in found.get("facets", {}).items():
            values = [f"{_json(one['value'])} {one['count']:,}" for one in counts["values"]]
            echo(f"{field}: {', '.join(values)}")
        if found.get("cursor"):
            echo(f"next page: --cursor {found['cursor']}")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@click.command(short_help="Score texts for a query; print them, best first.")
@click.argument("query")
@click.argument("texts", nargs=-1)
@click.option("--file", "source", type=click.File("r", encoding="utf-8"), help="Read texts from here, one a line.")
@click.option("--raw-scores", is_flag=True, help="Print the reranker's own scores.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list of all scores, in the order of the texts.")
@settings_options(*REDIS_SETTINGS)
def rerank(
    settings: Settings, query: str, texts: tuple[str, ...], source: Any, raw_scores: bool, as_json: bool
) -> None:
    """Score TEXTS, the lines of a file, or the lines of standard input for QUERY. Print them, best first."""
    if texts and source:
        raise InvalidRequest("there are texts and --file: give one of them")
    lines = list(texts) or [line.rstrip("\r\n") for line in source or sys.stdin]
    with Client.from_settings(settings) as client:
        scores = client.rerank(query, lines, raw_scores=raw_scores).tolist()
    if as_json:
        click.echo(json.dumps(scores))
        return
    for score, line in sorted(zip(scores, lines, strict=True), key=lambda pair: -pair[0]):
        echo(f"{score:.3f}  {line}")
