"""The command `shoal eval`: measure the quality of search on a running service."""

import json
from dataclasses import asdict
from functools import partial
from typing import IO

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.client.redis.client import Client
from shoal.evaluation.collection import Collection
from shoal.evaluation.evaluation import Evaluation, table
from shoal.evaluation.run import Setting, run
from shoal.operations.search import MAX_K
from shoal.settings import Settings


@click.command("eval", short_help="Measure the quality of search by queries with judgements.")
@click.argument("folder")
@click.option("--split", default="test", show_default=True, help="Use the judgements in qrels/SPLIT.tsv.")
@click.option("--index", default="default", show_default=True, help="Index to search.")
@click.option("-k", type=click.IntRange(1, MAX_K), default=10, show_default=True, help="Hits that nDCG and MRR use.")
@click.option(
    "--depth", type=click.IntRange(1, MAX_K - 1), default=100, show_default=True, help="Hits that recall and MAP use."
)
@click.option("--leave-out-own", is_flag=True, help="Leave out the document with the id of the query (ArguAna).")
@click.option("--setting", "words", multiple=True, help="Options of a search, as `mode=hybrid alpha=0.6`; repeatable.")
@click.option("--json", "out", type=click.File("w", encoding="utf-8", lazy=True), help="Save every figure here.")
@settings_options(*REDIS_SETTINGS, "request_timeout_s")
def eval_(
    settings: Settings,
    folder: str,
    split: str,
    index: str,
    k: int,
    depth: int,
    leave_out_own: bool,
    words: tuple[str, ...],
    out: IO[str] | None,
) -> None:
    """Measure how well a running service finds the documents that people judged to be relevant.

    FOLDER is a test collection in BEIR's format, with queries.jsonl and qrels/test.tsv. A worker serves the index of
    its documents.

    Each --setting is evaluated, and compared with the first one query by query. Without --setting, the service's
    defaults are evaluated.
    """
    if depth < k:
        raise click.UsageError(f"--depth is {depth}, less than -k, {k}: raise it")
    parsed, collection = [Setting.parse(each) for each in words or ("",)], Collection.read(folder, split)
    with Client.from_settings(settings) as client:
        search = partial(client.search, index=index)
        found = [run(search, collection, each, depth, leave_out_own) for each in parsed]
    evaluation = Evaluation.of(collection, parsed, found, k, depth)
    click.echo(table(evaluation))
    if out:
        out.write(json.dumps(asdict(evaluation), indent=2))
