"""The command `shoal eval`: measure the quality of search on a running service."""

import json
import shlex
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.cli.output import OutputFile
from shoal.client.http.client import HttpClient
from shoal.client.questions import Questions
from shoal.client.redis.client import Client
from shoal.errors import UnknownIndex
from shoal.evaluation.collection import Collection, file_of, write_source
from shoal.evaluation.evaluation import Evaluation, tables
from shoal.evaluation.run import Setting, run, times
from shoal.operations.search import MAX_K
from shoal.process.progress import wait_until
from shoal.records.source_file import SourceRules
from shoal.settings import Settings

#: Longest wait until workers serve a new index, in seconds.
SERVED_WITHIN_S = 60.0


@click.command("eval", short_help="Measure the quality of search by queries with judgements.")
@click.argument("folder")
@click.option("--split", default="test", show_default=True, help="Use the judgements in qrels/SPLIT.tsv.")
@click.option("--index", default="default", show_default=True, help="Index to search.")
@click.option("--build", default="", help='Flags of `shoal index build` for the corpus, as "--language english".')
@click.option("-k", type=click.IntRange(1, MAX_K), default=10, show_default=True, help="Hits that nDCG and MRR use.")
@click.option(
    "--depth", type=click.IntRange(1, MAX_K - 1), default=100, show_default=True, help="Hits that recall and MAP use."
)
@click.option("--id-field", default="id", show_default=True, help="Field of a hit with the id of its document.")
@click.option("--leave-out-own", is_flag=True, help="Leave out the document with the id of the query (ArguAna).")
@click.option("--url", default="", help="Search through the API at this URL instead of Redis.")
@click.option("--api-key", envvar="SHOAL_API_KEY", default="", help="Key for --url. [SHOAL_API_KEY]")
@click.option("--setting", "words", multiple=True, help="Options of a search, as `mode=hybrid alpha=0.6`; repeatable.")
@click.option("--no-times", is_flag=True, help="Do not measure the times of searches.")
@click.option("--json", "out", type=OutputFile(), help="Save every figure here.")
@settings_options(*REDIS_SETTINGS, "request_timeout_s", "index_home")
def eval_(
    settings: Settings,
    words: tuple[str, ...],
    no_times: bool,
    out: Path | None,
    **options: Any,
) -> None:
    """Measure how well a running service finds the documents that people judged to be relevant.

    FOLDER is a test collection in BEIR's format, with queries.jsonl and qrels/test.tsv. An index that is not served yet
    is built from its corpus.jsonl.

    Each --setting is evaluated, and compared with the first one query by query. Without --setting, the service's
    defaults are evaluated.
    """
    asked, parsed = SimpleNamespace(**options), [Setting.parse(each) for each in words or ("",)]
    if asked.depth < asked.k:
        raise click.UsageError(f"--depth is {asked.depth}, less than -k, {asked.k}: raise it")
    collection = Collection.read(asked.folder, asked.split, SourceRules.from_settings(settings))
    client: Client | HttpClient
    if asked.url:
        client = HttpClient(asked.url, asked.api_key, timeout_s=settings.request_timeout_s)
    else:
        client = Client.from_settings(settings)
    with client:
        if not _is_served(client, asked.index):
            _build(settings, asked)
            served = partial(_is_served, client, asked.index)
            wait_until(f"workers that serve the index {asked.index}", served, SERVED_WITHIN_S)
        search = partial(client.search, index=asked.index)
        found = [run(search, collection, each, asked.depth, asked.id_field, asked.leave_out_own) for each in parsed]
        texts = list(collection.queries.values())
        timed = [None] * len(parsed) if no_times else times(search, texts, parsed, asked.k)
    evaluation = Evaluation.of(collection, parsed, found, timed, asked.k, asked.depth)
    click.echo(tables(evaluation))
    if out:
        with click.open_file(out, "w", encoding="utf-8") as file:
            file.write(json.dumps(asdict(evaluation), indent=2))


def _is_served(client: Questions, index: str) -> bool:
    try:
        client.search(["is it there?"], k=1, index=index)
    except UnknownIndex:
        return False
    return True


def _build(settings: Settings, asked: SimpleNamespace) -> None:
    """Build an index of the corpus with `shoal index build`. Raises UnknownIndex for a URL or without a corpus."""
    from shoal.cli.main import main

    if asked.url:
        raise UnknownIndex(
            f"the service at {asked.url} has no index {asked.index}: name one with --index, or build it there "
            "with shoal index build"
        )
    corpus = file_of(asked.folder, "corpus.jsonl")
    if not Path(corpus).is_file():
        raise UnknownIndex(
            f"no worker serves an index {asked.index}: name one with --index, or put its documents into {corpus}"
        )
    flags = [f"--{name.replace('_', '-')}={getattr(settings, name)}" for name in (*REDIS_SETTINGS, "index_home")]
    with TemporaryDirectory(prefix="shoal-eval-") as folder:
        source = Path(folder) / "corpus.jsonl"
        click.echo(f"building the index {asked.index} of {corpus}", err=True)
        write_source(corpus, source, SourceRules.from_settings(settings))
        command = main.get_command(click.Context(main), "index")
        assert command, "it is installed with this one"
        words = ["build", str(source), f"--name={asked.index}", *flags, *shlex.split(asked.build)]
        command.main(words, prog_name="shoal index", standalone_mode=False)
