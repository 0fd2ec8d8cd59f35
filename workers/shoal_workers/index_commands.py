"""The command `shoal index`: building indexes, and publishing, listing and deleting their versions."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.long_job import submit
from shoal.cli.options import MODEL_SETTINGS, REDIS_SETTINGS, settings_options
from shoal.client.source_file import place_of
from shoal.errors import InvalidRequest, Unavailable
from shoal.progress import Progress, TaskBar
from shoal.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal_workers.index.document_encoder import DocumentEncoder
    from shoal_workers.index.long_tasks import BuildIndex

#: Sample headlines that come with Shoal.
SAMPLE = Path(__file__).parent / "sample" / "headlines.csv"

FOLDER_SETTINGS = ("indexes", "index_home", "home")

#: The settings of the commands after which the store is brought to what the folder says.
CHANGE_SETTINGS = (*FOLDER_SETTINGS, "index_store")


@click.group()
def index() -> None:
    """Build an index of your documents, and manage its versions.

    INDEX is the name of an index or its folder. A name is one of SHOAL_INDEXES, or of a folder in SHOAL_INDEX_HOME.
    Where a folder here has such a name, ./NAME is the folder.
    """


@index.command()
@click.argument("source", required=False)
@click.option("--name", help="Name of the index: one of SHOAL_INDEXES, or of a folder in SHOAL_INDEX_HOME.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the index, not its name.")
@click.option("--text-column", help="Column to embed and search. [default: text, else the only candidate]")
@click.option("--id-column", help="Column of the documents' ids. [default: id, else numbers from 0]")
@click.option("--skip-bad", is_flag=True, help="Leave bad rows out, in place of refusing the source.")
@click.option("--full", is_flag=True, help="Embed all texts, also those that the version before has vectors of.")
@click.option("--no-publish", is_flag=True, help="Leave the current version until `shoal index publish`.")
@click.option("--local", is_flag=True, help="Embed in this process, even if a pool answers.")
@click.option("--detach", is_flag=True, help="Let a runner do it, print the id of the job, and return.")
@click.option("--webhook", help="With --detach: URL that is told of the end of the job.")
@settings_options(
    *REDIS_SETTINGS, *MODEL_SETTINGS, "indexes", "index_home", "index_store", "kept_versions", "max_text_chars"
)
def build(
    settings: Settings,
    source: str | None,
    name: str | None,
    out: Path | None,
    text_column: str | None,
    id_column: str | None,
    skip_bad: bool,
    full: bool,
    no_publish: bool,
    local: bool,
    detach: bool,
    webhook: str | None,
) -> None:
    """Build a version of an index from the documents in SOURCE.

    It is a file (.csv, .tsv, .jsonl, .txt, .parquet or .arrow), packed or not, or a URL of one.

    Without SOURCE, take the sample headlines that come with Shoal. The workers of a pool that answers embed the texts;
    without one, or with --local, this process does. Texts that the version before has are not embedded again. A build
    that was interrupted goes on when the same command is given again.

    The new version is published when it is complete: workers that serve the index switch to it.

    With --detach, a runner builds it, from a source below its roots.
    """
    from shoal_workers.process.processors import limit_native_threads

    limit_native_threads(settings.threads, settings.workers)
    from shoal_workers.index.long_tasks import BuildIndex, where_is

    if (name is None) == (out is None):
        raise click.UsageError("Name the index with --name, or its folder with --out.")
    folder = out or where_is(settings, name or "")
    if source is None:
        source, text_column = str(SAMPLE), "headline"
    on_bad = "skip" if skip_bad else "raise"
    request = BuildIndex(name or folder.name, source, text_column, id_column, on_bad, not no_publish, full)
    if detach:
        if name is None or source == str(SAMPLE) or local:
            raise click.UsageError("--detach takes a SOURCE and --name, and not --local.")
        submit(settings, "build_index", asdict(replace(request, source=place_of(source))), webhook)
        return
    _build_here(settings, request, folder, local)


@index.command("list")
@click.argument("index_name", metavar="INDEX")
@settings_options(*FOLDER_SETTINGS)
def list_(settings: Settings, index_name: str) -> None:
    """List the versions of an index, the one that was built last first; the current one has an asterisk."""
    from shoal_workers.index.versions import list_versions

    for version in list_versions(_folder(settings, index_name)):
        about = version.to_map()
        if not (what := about["error"]):
            what = (
                f"{about['count']:,} documents, {about['size_bytes'] / 2**20:,.1f} MB, of {about['source']}, "
                f"{about['model']}"
            )
        click.echo(f"{'*' if version.is_current else ' '} {version.name}  {what}")


@index.command()
@click.argument("index_name", metavar="INDEX")
@click.argument("version")
@settings_options(*REDIS_SETTINGS, *CHANGE_SETTINGS)
def publish(settings: Settings, index_name: str, version: str) -> None:
    """Make VERSION the current one: workers that serve the index switch to it.

    A version of another model than that of the pool, if one answers, is refused.
    """
    from shoal_workers.index.versions import publish

    folder = _folder(settings, index_name)
    publish(folder, version, _pool_digest(settings))
    click.echo(f"{folder}: version {version} is published")
    _upload(settings, folder)


@index.command()
@click.argument("index_name", metavar="INDEX")
@settings_options(*REDIS_SETTINGS, *CHANGE_SETTINGS)
def rollback(settings: Settings, index_name: str) -> None:
    """Make the version current that was published before the current one."""
    from shoal_workers.index.versions import rollback

    folder = _folder(settings, index_name)
    click.echo(f"{folder}: version {rollback(folder, _pool_digest(settings))} is published")
    _upload(settings, folder)


@index.command()
@click.argument("index_name", metavar="INDEX")
@click.argument("version")
@settings_options(*CHANGE_SETTINGS)
def delete(settings: Settings, index_name: str, version: str) -> None:
    """Delete VERSION, which may not be the current one."""
    from shoal_workers.index.versions import delete

    folder = _folder(settings, index_name)
    delete(folder, version)
    click.echo(f"{folder}: version {version} is deleted")
    _upload(settings, folder)


@index.command("info")
@click.argument("index_name", metavar="INDEX")
@settings_options(*FOLDER_SETTINGS)
def info(settings: Settings, index_name: str) -> None:
    """Check the files of an index's current version and show its manifest."""
    from shoal_workers.index.index import Index

    manifest = Index.open(_folder(settings, index_name)).manifest
    click.echo(json.dumps(asdict(manifest), indent=2, ensure_ascii=False))


def _folder(settings: Settings, name: str) -> Path:
    """Return the folder of an index that a command names, by its name or as a path; the name goes first."""
    from shoal_workers.index.long_tasks import where_is

    is_known = name in settings.index_folders() or (name.strip(".") and (settings.index_home_folder / name).is_dir())
    if "/" in name or (Path(name).is_dir() and not is_known):
        return Path(name)
    return where_is(settings, name)


def _build_here(settings: Settings, request: "BuildIndex", folder: Path, local: bool) -> None:
    """Build a version in this process, and print what was done."""
    from shoal_workers.index.long_tasks import build_index
    from shoal_workers.index.manifest import BAD_ROWS
    from shoal_workers.index.store_process import check_store

    check_store(settings)
    request.open_source(settings)  # what is wrong with the source or the folder is said before a model is opened
    folder.mkdir(parents=True, exist_ok=True)
    with _encoder(settings, local) as encoder, TaskBar() as report:
        result = build_index(request, folder, encoder, report, settings=settings)
    click.echo(f"{folder}: {result.count:,} documents, version {result.version}, {result.model}")
    if result.num_embedded < result.count:
        click.echo(
            f"{result.num_embedded:,} texts were embedded; {result.num_reused:,} documents have their vectors from the "
            f"version before, {result.num_repeated:,} from documents with the same text"
        )
    if result.num_bad:
        bad_rows = folder / result.version / BAD_ROWS
        click.echo(f"{result.num_bad:,} rows were left out: {bad_rows} lists them", err=True)
    if not request.publish:
        click.echo(f"it is not published: shoal index publish {folder} {result.version}", err=True)
    _upload(settings, folder)


def _upload(settings: Settings, folder: Path) -> None:
    """Bring the store to what the folder of an index says, if the store is for that index."""
    from shoal_workers.index.store_process import upload_index

    with Progress("uploading"):
        is_uploaded = upload_index(settings, folder)
    if is_uploaded:
        click.echo("the store of indexes is up to date", err=True)


@contextmanager
def _encoder(settings: Settings, local: bool) -> Iterator["DocumentEncoder"]:
    """Give the encoder of a build: the pool, if one answers, or a model in this process."""
    if not local and (client := _client_of_pool(settings)):
        from shoal_workers.index.pool_encoder import PoolEncoder

        with client:
            encoder = PoolEncoder.find(client)
            if settings.model not in (DEFAULTS.model, encoder.model.name):
                raise InvalidRequest(
                    f"the model is {settings.model}, but the pool serves {encoder.model.name}: leave --model out, or "
                    "embed in this process (--local)"
                )
            click.echo(f"the pool embeds the texts ({encoder.model.name})", err=True)
            yield encoder
        return
    from shoal_workers.index.local_encoder import LocalEncoder
    from shoal_workers.process import processors
    from shoal_workers.service import open_encoder

    with Progress("opening the model"):
        threads = settings.threads or processors.threads_for(1, processors.available())
        opened = LocalEncoder(open_encoder(settings, threads))
    yield opened


def _client_of_pool(settings: Settings) -> "Client | None":
    """Return a client of the pool; None, after a line that says so, if no worker of it is ready."""
    from shoal.client.client import Client

    client = Client.from_settings(settings)
    try:
        if client.pool.ready():
            return client
        reason = "no worker of the pool is ready"
    except Unavailable:
        reason = "no pool answers"
    client.close()
    click.echo(f"{reason}: this process embeds the texts", err=True)
    return None


def _pool_digest(settings: Settings) -> str | None:
    """Return the digest of the pool's model; None, after a line that says so, if no worker is ready."""
    from shoal.client.client import Client
    from shoal_workers.index.pool_encoder import served_digest

    with Client.from_settings(settings) as client:
        try:
            if digest := served_digest(client):
                return digest
        except Unavailable:
            pass
    click.echo("no pool answers: the version's model is not compared with that of the workers", err=True)
    return None
