"""The command `shoal rerank`."""

import json
import sys
from typing import Any

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.cli.shown.output import echo
from shoal.client.redis.client import Client
from shoal.settings import Settings


@click.command(short_help="Score texts for a query; print them, best first.")
@click.argument("query")
@click.argument("texts", nargs=-1)
@click.option("--file", "source", type=click.File("r", encoding="utf-8"), help="Read texts from here, one a line.")
@click.option("--raw-scores", is_flag=True, help="Leave the scores as the model makes them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list of all scores, in the order of the texts.")
@settings_options(*REDIS_SETTINGS)
def rerank(
    settings: Settings, query: str, texts: tuple[str, ...], source: Any, raw_scores: bool, as_json: bool
) -> None:
    """Score TEXTS, the lines of a file, or those of standard input for QUERY; print them, best first."""
    lines = list(texts) or [line.rstrip("\r\n") for line in source or sys.stdin]
    with Client.from_settings(settings) as client:
        scores = client.rerank(query, lines, raw_scores=raw_scores).tolist()
    if as_json:
        click.echo(json.dumps(scores))
        return
    for score, line in sorted(zip(scores, lines, strict=True), key=lambda pair: -pair[0]):
        echo(f"{score:.3f}  {line}")
