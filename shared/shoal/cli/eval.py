"""The command `shoal eval`: measure the quality of search on a running service."""

import json
from pathlib import Path

import click

from shoal.cli.collection import Asked, collection_options, evaluator
from shoal.cli.options import REDIS_SETTINGS, settings_options, write_output
from shoal.evaluation.plot import svg
from shoal.evaluation.setting import Setting
from shoal.evaluation.table import tables
from shoal.evaluation.trec import write_run
from shoal.settings import Settings


@click.command("eval", short_help="Measure the quality of search by queries with judgements.")
@collection_options
@click.option("--setting", "words", multiple=True, help="Options of a search, as `mode=hybrid alpha=0.6`; repeatable.")
@click.option("--no-times", is_flag=True, help="Leave out the times of single searches.")
@click.option("--runs", type=click.Path(file_okay=False, path_type=Path), help="Folder for the hits, as TREC runs.")
@settings_options(*REDIS_SETTINGS, "request_timeout_s", "index_home")
def eval_(
    settings: Settings,
    asked: Asked,
    words: tuple[str, ...],
    no_times: bool,
    runs: Path | None,
    out: Path | None,
    plot: Path | None,
) -> None:
    """Measure how well a running service finds what people judged to be relevant.

    FOLDER is a test collection in BEIR's format: corpus.jsonl, queries.jsonl and qrels/test.tsv. Options name single
    files in its place. If no index of the name is served, one is built of the corpus.

    Each --setting is evaluated, and compared with the first one query by query. Without any, it is that of the service.
    """
    parsed = [Setting.parse(each) for each in words or ("",)]
    with evaluator(settings, asked) as evaluator_:
        found = [evaluator_.run(setting) for setting in parsed]
        evaluation = evaluator_.evaluate(found, with_times=not no_times)
    click.echo(tables(evaluation))
    write_output(out, json.dumps(evaluation.to_map(), indent=2))
    write_output(plot, svg(evaluation, asked.title))
    if runs:
        runs.mkdir(parents=True, exist_ok=True)
        for number, run in enumerate(found, 1):
            with (runs / f"{number}.run").open("w", encoding="utf-8") as file:
                write_run(file, run)
