"""The command `shoal index build`, which builds a version of an index from documents."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.long_job import submit
from shoal.cli.options import MODEL_SETTINGS, REDIS_SETTINGS, settings_options
from shoal.contract.languages import LANGUAGES
from shoal.errors import InvalidRequest, Unavailable
from shoal.process.progress import StepBar, TaskBar
from shoal.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from shoal.client.redis.client import Client
    from shoal_workers.index.build.builder import BuildResult
    from shoal_workers.index.build.document_encoder import DocumentEncoder
    from shoal_workers.index.long_jobs import BuildIndex

#: The file of sample headlines that comes with Shoal.
SAMPLE = Path(__file__).parent / "sample" / "headlines.csv"


@click.command()
@click.argument("source", required=False)
@click.option("--name", help="Name of the index: one of SHOAL_INDEXES, or of a folder in SHOAL_INDEX_HOME.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the index, not its name.")
@click.option("--text-column", help="Column to embed and search. [default: text, else the only candidate]")
@click.option("--id-column", help="Column of the documents' ids. [default: id, else _id, else numbers from 0]")
@click.option("--skip-bad", is_flag=True, help="Leave bad rows out instead of refusing the source.")
@click.option(
    "--language",
    type=click.Choice(LANGUAGES),
    metavar="LANGUAGE",
    help="Language of the words: english, none, …; learned: the model's tokens and weights. [default: detected]",
)
@click.option("--chunk-tokens", type=int, help="Cut documents into chunks of at most this many tokens.")
@click.option("--chunk-overlap", type=int, default=0, help="Most tokens that two neighbouring chunks share.")
@click.option(
    "--field",
    "field_kinds",
    multiple=True,
    metavar="NAME=KIND",
    help="Kind of a field: keyword, number, date, boolean or stored. [default: the one that all its values have]",
)
@click.option("--token-vectors", is_flag=True, help="Keep the reranker's token vectors (ColBERT) for second stages.")
@click.option("--full", is_flag=True, help="Build in any case, and embed all texts anew.")
@click.option(
    "--drop-changes-before",
    type=float,
    metavar="TIME",
    help="Forget changes made before TIME (Unix seconds), because SOURCE has them.",
)
@click.option("--no-publish", is_flag=True, help="Leave the current version until `shoal index publish`.")
@click.option("--local", is_flag=True, help="Embed in this process, even if a pool answers.")
@click.option("--detach", is_flag=True, help="Let a runner build it, print the id of the job, and return.")
@settings_options(
    *(*REDIS_SETTINGS, *MODEL_SETTINGS, "reranker", "indexes"),
    *("index_home", "index_store", "kept_versions", "max_text_chars"),
)
def build(
    settings: Settings,
    source: str | None,
    name: str | None,
    out: Path | None,
    skip_bad: bool,
    no_publish: bool,
    local: bool,
    detach: bool,
    **fields: Any,
) -> None:
    """Build a version of an index from the documents in SOURCE.

    SOURCE is a file (.csv, .tsv, .jsonl, .txt or .parquet, compressed or not), a document (.html, .md, .pdf), or a
    folder of documents. Without SOURCE, the sample headlines that come with Shoal are indexed.

    If a pool answers, its workers embed the texts; otherwise, or with --local, this process embeds them. Texts that the
    version built last has are not embedded again, and if nothing has changed, the current version stays. A build that
    was interrupted goes on when the same command is given again.

    Documents that were added to the served index, or deleted from it, stay added or deleted in the new version,
    whatever SOURCE has. If Redis does not answer, or with --local, changes that the current version lacks are left to
    later builds.

    A new version is published when it is complete: workers that serve the index switch to it.

    With --detach, a runner builds it, from a source below its roots.
    """
    from shoal_workers.process.processors import limit_native_threads

    limit_native_threads(settings.threads, settings.workers)
    from shoal.client.job_source import place_of
    from shoal_workers.index.long_jobs import BuildIndex, where_is

    if (name is None) == (out is None):
        raise click.UsageError("Name the index with --name, or its folder with --out.")
    folder = out or where_is(settings, name or "")
    if source is None:
        source, fields["text_column"] = str(SAMPLE), "headline"
    on_bad = "skip" if skip_bad else "raise"
    fields["field_kinds"] = list(fields["field_kinds"])  # JSON has no tuples
    request = BuildIndex(name or folder.name, source, on_bad=on_bad, publish=not no_publish, **fields)
    if detach:
        if name is None or source == str(SAMPLE) or local:
            raise click.UsageError("--detach takes a SOURCE and --name, and not --local.")
        submit(settings, "build_index", asdict(replace(request, source=place_of(source))))
        return
    build_here(settings, request, folder, local)


def build_here(settings: Settings, request: "BuildIndex", folder: Path, local: bool) -> None:
    """Build a version in this process, and print the result."""
    from shoal.client.redis.client import Client
    from shoal_workers.index.long_jobs import build_index, changes_of, name_of
    from shoal_workers.index.store.copy_process import check_store

    check_store(settings)
    request.open_source(settings)  # errors of the source and the folder are raised before the model is opened
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        client = None
        if request.is_migration or not local:
            try:
                client = stack.enter_context(Client.from_settings(settings))
                if not client.pool.ready():
                    click.echo("no worker of the pool is ready: this process embeds the texts", err=True)
            except Unavailable:
                client = None
                click.echo("no pool answers: this process embeds the texts", err=True)
        changes = changes_of(name_of(settings, folder), client) if client else None
        with _encoder(settings, None if local else client) as encoder:
            result = build_index(request, folder, encoder, TaskBar(), settings=settings, changes=changes)
        _print_result(result, folder)
        if not result.is_published:
            changed = ", as another version became the current one meanwhile" if request.publish else ""
            click.echo(f"it is not published{changed}: shoal index publish {folder} {result.version}", err=True)
        upload_changes(settings, folder)
        if changes:
            changes.forget_folded(folder)


def _print_result(result: "BuildResult", folder: Path) -> None:
    """Print the result of a build."""
    from shoal_workers.index.files.manifest import BAD_ROWS

    chunks = "" if result.count == result.num_documents else f" in {result.count:,} chunks"
    if result.is_unchanged:
        click.echo(f"{folder}: unchanged: version {result.version} stays")
    else:
        click.echo(f"{folder}: {result.num_documents:,} documents{chunks}, version {result.version}, {result.model}")
    if result.num_embedded < result.count and not result.is_unchanged:
        click.echo(
            f"{result.num_embedded:,} texts were embedded; {result.num_reused:,} documents have their vectors from the "
            f"version built last, {result.num_repeated:,} from documents with the same text"
        )
    if result.fields:
        click.echo("fields: " + ", ".join(f"{name} ({found['kind']})" for name, found in result.fields.items()))
    if result.num_changed:
        click.echo(f"changes of {result.num_changed:,} ids are folded in")
    if result.num_lost:
        click.echo("some changes are not in Redis any more, or cannot be read: they are lost (see above)", err=True)
    if result.num_bad:
        click.echo(f"{result.num_bad:,} rows were left out: {folder / result.version / BAD_ROWS} lists them", err=True)


def upload_changes(settings: Settings, folder: Path, *, is_anew: bool = False) -> bool:
    """Upload the folder of an index to the store; return False if the index does not belong in the store."""
    from shoal_workers.index.store.copy_process import upload_index

    with StepBar("uploading"):
        is_uploaded = upload_index(settings, folder, is_anew=is_anew)
    if is_uploaded:
        click.echo("the store of indexes is up to date", err=True)
    return is_uploaded


@contextmanager
def _encoder(settings: Settings, client: "Client | None") -> Iterator["DocumentEncoder"]:
    """Yield the encoder of a build: the pool if a worker is ready, else a model in this process."""
    from shoal.bulk.served_model import served_model
    from shoal_workers.index.build.document_encoder import LocalEncoder, PoolEncoder

    if client and (model := served_model(client.pool.ready().values())):
        if settings.model not in (DEFAULTS.model, model.name):
            raise InvalidRequest(
                f"the model is {settings.model}, but the pool serves {model.name}: leave --model out, or embed in this "
                "process (--local)"
            )
        click.echo(f"the pool embeds the texts ({model.name})", err=True)
        yield PoolEncoder(client, model)
        return
    from shoal_workers.process import processors
    from shoal_workers.service.service import open_encoder

    with StepBar("opening the model"):
        threads = settings.threads or processors.threads_for(1, processors.available())
        opened = LocalEncoder(open_encoder(settings, threads))
    yield opened
