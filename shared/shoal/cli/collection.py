"""The options of the commands that read a test collection, and the index that has its documents."""

import functools
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from shoal.cli.options import OutputFile
from shoal.client.http.client import HttpClient
from shoal.client.questions import Questions
from shoal.client.redis.client import Client
from shoal.errors import MissingExtra, UnknownIndex
from shoal.evaluation.collection import Collection, Files
from shoal.evaluation.corpus import write_source
from shoal.evaluation.evaluator import Evaluator
from shoal.evaluation.run import Ids
from shoal.extra import install_command
from shoal.records.source_rules import SourceRules
from shoal.search_job import MAX_K
from shoal.settings import Settings
from shoal.supervisor.wait import wait_until

#: Time within which workers serve an index that was built, in seconds.
SERVED_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """The collection and the index that a command line names, and the ranks that count."""

    folder: str | None
    corpus: str | None
    queries: str | None
    qrels: str | None
    split: str
    topic_field: str | None
    index: str
    build: str
    k: int
    depth: int
    id_field: str
    leave_out_own: bool
    url: str
    api_key: str = field(repr=False)

    @property
    def files(self) -> Files:
        """The files of the collection."""
        return Files.of(self.folder, self.corpus, self.queries, self.qrels, self.split)

    @property
    def title(self) -> str:
        """The name of the collection and of the index."""
        return f"{Path(self.folder or self.files.queries).resolve().name}, index {self.index}"


_OPTIONS = (
    click.argument("folder", required=False),
    click.option("--corpus", help="Documents, as corpus.jsonl of BEIR: for an index that is not served yet."),
    click.option("--queries", help="Queries: JSON lines of BEIR, topics of TREC, or lines of id, tab, text."),
    click.option("--qrels", help="Judgements, in the format of BEIR or of TREC."),
    click.option("--split", default="test", show_default=True, help="FOLDER: the judgements in qrels/SPLIT.tsv."),
    click.option("--topic-field", help="TREC: the field of a topic to search for. [default: title, else query]"),
    click.option("--index", default="default", show_default=True, help="Index to search."),
    click.option("--build", default="", help='Flags of `shoal index build` for the corpus, as "--language english".'),
    click.option("-k", type=click.IntRange(1, MAX_K), default=10, show_default=True, help="Hits for nDCG and MRR."),
    click.option(
        "--depth", type=click.IntRange(1, MAX_K - 1), default=100, show_default=True, help="Hits for recall and MAP."
    ),
    click.option("--id-field", default="id", show_default=True, help="Field of a hit with the id of its document."),
    click.option("--leave-out-own", is_flag=True, help="Leave out the document with the id of the query (ArguAna)."),
    click.option("--url", default="", help="Ask the API at this URL, and not the workers by Redis."),
    click.option("--api-key", envvar="SHOAL_API_KEY", default="", help="Key for --url. [SHOAL_API_KEY]"),
)

_OUTPUTS = (
    click.option("--json", "out", type=OutputFile(), help="Save every figure here."),
    click.option("--plot", type=OutputFile(), help="Draw a picture (SVG) here."),
)


def collection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a collection to a command, which is called with `asked=Asked`."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        asked = Asked(**{name: kwargs.pop(name) for name in Asked.__dataclass_fields__})
        if asked.depth < asked.k:
            raise click.UsageError(f"--depth is {asked.depth}, less than -k, {asked.k}: raise it")
        return command(*args, asked=asked, **kwargs)

    for option in reversed((*_OPTIONS, *_OUTPUTS)):
        wrapper = option(wrapper)
    return wrapper


@contextmanager
def evaluator(settings: Settings, asked: Asked) -> Iterator[Evaluator]:
    """Open the collection and the service; first build an index of the corpus if none is served by the name.

    Raises UnknownIndex for a service that is asked over HTTP, where the index has to be built by itself.
    """
    rules = SourceRules.from_settings(settings)
    collection = Collection.read(asked.files, rules, asked.topic_field)
    with _service(settings, asked) as client:
        if not _is_served(client, asked.index):
            if asked.url:
                raise UnknownIndex(
                    f"the service at {asked.url} has no index {asked.index}: name one with --index, or build it there "
                    "with shoal index build"
                )
            _build(settings, asked, rules)
            wait_until(
                f"workers that serve the index {asked.index}", partial(_is_served, client, asked.index), SERVED_WITHIN_S
            )
        search = partial(client.search, index=asked.index)
        yield Evaluator(search, collection, asked.k, asked.depth, Ids(asked.id_field, asked.leave_out_own))


def _service(settings: Settings, asked: Asked) -> Client | HttpClient:
    """Return the client of the service: over HTTP if a URL is named, else by Redis."""
    if asked.url:
        return HttpClient(asked.url, asked.api_key, timeout_s=settings.request_timeout_s)
    return Client.from_settings(settings)


def _is_served(client: Questions, index: str) -> bool:
    try:
        client.search(["is it there?"], k=1, index=index)
    except UnknownIndex:
        return False
    return True


def _build(settings: Settings, asked: Asked, rules: SourceRules) -> None:
    """Build an index of the corpus by `shoal index build`. Raises UnknownIndex if there is no corpus."""
    from shoal.cli.main import main

    if asked.files.corpus is None:
        raise UnknownIndex(
            f"no worker serves an index {asked.index}: name one with --index, or documents with --corpus"
        )
    context = click.Context(main)
    group = main.get_command(context, "index")
    if not isinstance(group, click.Group):
        raise MissingExtra(
            f"building an index needs the workers, which are not installed: {install_command('workers')}"
        )
    build = group.get_command(context, "build")
    assert build
    with TemporaryDirectory(prefix="shoal-eval-") as folder:
        source = Path(folder) / "corpus.jsonl"
        click.echo(f"building the index {asked.index} of {asked.files.corpus}", err=True)
        write_source(asked.files.corpus, source, rules)
        pool = ["--redis-url", settings.redis_address, "--key-prefix", settings.key_prefix, "--pool", settings.pool]
        flags = [
            "--name",
            asked.index,
            "--home",
            settings.home,
            "--index-home",
            str(settings.index_home_folder),
            *pool,
            *shlex.split(asked.build),
        ]
        build.main([str(source), *flags], prog_name="shoal index build", standalone_mode=False)
