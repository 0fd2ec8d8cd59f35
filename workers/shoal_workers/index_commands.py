"""The commands `shoal index` except `build`, for versions of an index and for served documents."""

import json
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import click

from shoal.cli.options import MODEL_SETTINGS, REDIS_SETTINGS, settings_options
from shoal.cli.output import echo, echo_lines
from shoal.contract.languages import LANGUAGES
from shoal.errors import InvalidRequest, Unavailable
from shoal.process.progress import StepBar
from shoal.settings import Settings
from shoal_workers.build_command import build, build_here, upload_changes

FOLDER_SETTINGS = ("indexes", "index_home", "home")

#: The settings of commands that change a folder and then upload it to the store.
CHANGE_SETTINGS = (*FOLDER_SETTINGS, "index_store")


@click.group()
def index() -> None:
    """Build an index of your documents, and change it.

    INDEX is the name of an index or its folder. Names come from SHOAL_INDEXES and from the folders in
    SHOAL_INDEX_HOME. If the current folder has a folder of the same name, ./NAME means that folder.
    """


index.add_command(build)


@index.command()
@click.argument("index_name", metavar="INDEX")
@click.option("--no-publish", is_flag=True, help="Leave the current version until `shoal index publish`.")
@click.option("--local", is_flag=True, help="Embed in this process, even if a pool answers.")
@click.option("--language", type=click.Choice(LANGUAGES), metavar="LANGUAGE", help="As for a build. [default: kept]")
@settings_options(*REDIS_SETTINGS, *MODEL_SETTINGS, "reranker", "indexes", "index_home", "index_store", "kept_versions")
def migrate(settings: Settings, index_name: str, no_publish: bool, local: bool, language: str | None) -> None:
    """Embed the documents of INDEX anew, and publish the new version when it is done.

    The model is the pool's, or with --local the model of the settings. The source is the current version, which is
    served meanwhile; additions and deletions since its build are folded in. After an interruption, the same command
    goes on.
    """
    from shoal_workers.process.processors import limit_native_threads

    limit_native_threads(settings.threads, settings.workers)
    from shoal_workers.index.long_jobs import MigrateIndex

    folder = _folder(settings, index_name)
    build_here(settings, MigrateIndex.of(index_name, folder, not no_publish, language), folder, local)


@index.command()
@click.argument("index_name", metavar="INDEX")
@click.argument("source")
@click.option("--text-column", help="Column to embed and search. [default: text, else the only candidate]")
@click.option("--id-column", default="id", show_default=True, help="Column of the documents' ids.")
@settings_options(*REDIS_SETTINGS, "max_text_chars")
def add(settings: Settings, index_name: str, source: str, text_column: str | None, id_column: str) -> None:
    """Add the documents in SOURCE to INDEX, a name, while it is served: at most 10,000.

    Each replaces the document that has its id. Searches find them within 2 s. SOURCE is a file, as for a build.
    """
    from shoal.changes.change import MAX_CHANGES
    from shoal.client.redis.client import Client
    from shoal.records.source import Source
    from shoal.records.source_file import SourceRules

    max_text_chars, rules = settings.max_text_chars, SourceRules.from_settings(settings)
    documents = Source(source, text_column, id_column, max_text_chars=max_text_chars, rules=rules)
    with Client.from_settings(settings) as client, StepBar("adding documents"):
        found = list(islice(documents, MAX_CHANGES + 1))  # one more than allowed, to be refused
        num, _ = client.run(lambda own: own.writer(index_name, max_text_chars=max_text_chars).add(found))
    click.echo(f"documents added to {index_name}: {num:,}")


@index.command()
@click.argument("index_name", metavar="INDEX")
@click.argument("ids", nargs=-1, required=True)
@settings_options(*REDIS_SETTINGS)
def remove(settings: Settings, index_name: str, ids: tuple[str, ...]) -> None:
    """Remove the documents with these IDS from INDEX, a name, while it is served."""
    from shoal.client.redis.client import Client

    with Client.from_settings(settings) as client:
        num, _ = client.run(lambda own: own.writer(index_name, max_text_chars=settings.max_text_chars).delete(ids))
    click.echo(f"ids removed from {index_name}, with their documents if there are any: {num:,}")


@index.command()
@click.argument("index_name", metavar="INDEX")
@click.option("--to", required=True, metavar="URL", help="Address of the engine, such as postgresql://host/database.")
@settings_options(*REDIS_SETTINGS, *CHANGE_SETTINGS, "kept_versions", "engine_password")
def push(settings: Settings, index_name: str, to: str) -> None:
    """Copy INDEX into a vector engine, and publish the version there: workers then keep no files of the version.

    The version is the current one, or the newest one if the current one is in an engine already. After an
    interruption, the same command continues. Versions that are no longer kept are removed from the engine.
    """
    from shoal.client.redis.client import Client
    from shoal_workers.index.build.engine_push import push, remove_tables
    from shoal_workers.index.long_jobs import changes_of, name_of
    from shoal_workers.index.versions import changing, remove_old

    folder = _folder(settings, index_name)

    def report(num: int, count: int) -> None:
        progress.done, progress.total = num, count

    with Client.from_settings(settings) as client, StepBar("pushing", unit=" documents") as progress:
        changes = changes_of(name_of(settings, folder), client)
        version = push(folder, to, settings.engine_password, report, changes)
    _switch(settings, index_name, version)
    with changing(folder):
        remove_old(folder, version, settings.kept_versions)
    for address in remove_tables(folder, settings.engine_password):
        click.echo(f"{address} does not answer, and is removed by the next push", err=True)


@index.command("list")
@click.argument("index_name", metavar="INDEX")
@settings_options(*FOLDER_SETTINGS)
def list_(settings: Settings, index_name: str) -> None:
    """List the versions of an index, newest first; the current version has an asterisk."""
    from shoal_workers.index.versions import list_versions

    for version in list_versions(_folder(settings, index_name)):
        about = version.to_map()
        if not (what := about["error"]):
            chunks = "" if about["count"] == about["num_documents"] else f" in {about['count']:,} chunks"
            what = (
                f"{about['num_documents']:,} documents{chunks}, {about['size_bytes'] / 2**20:,.1f} MB, "
                f"of {about['source']}, {about['model']}"
            )
        if version.manifest and version.manifest.engine:
            what += f", in {version.manifest.engine}"
        echo(f"{'*' if version.is_current else ' '} {version.name}  {what}")


@index.command()
@click.argument("index_name", metavar="INDEX")
@click.argument("version")
@settings_options(*REDIS_SETTINGS, *CHANGE_SETTINGS)
def publish(settings: Settings, index_name: str, version: str) -> None:
    """Make VERSION the current one: workers that serve the index switch to it.

    If a pool answers, a version of another model than the pool's is refused.
    """
    _switch(settings, index_name, version)


@index.command()
@click.argument("index_name", metavar="INDEX")
@settings_options(*REDIS_SETTINGS, *CHANGE_SETTINGS)
def rollback(settings: Settings, index_name: str) -> None:
    """Go back to the version that was published before the current one."""
    _switch(settings, index_name, None)


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
    upload_changes(settings, folder)


@index.command()
@click.argument("index_name", metavar="INDEX")
@settings_options(*CHANGE_SETTINGS)
def upload(settings: Settings, index_name: str) -> None:
    """Write all files of an index to the store, because files there are missing or damaged."""
    folder = _folder(settings, index_name)
    if not upload_changes(settings, folder, is_anew=True):
        raise InvalidRequest(f"{folder} has no store: set SHOAL_INDEX_STORE, for an index in SHOAL_INDEX_HOME")


@index.command("info")
@click.argument("index_name", metavar="INDEX")
@settings_options(*FOLDER_SETTINGS)
def info(settings: Settings, index_name: str) -> None:
    """Check the files of an index's current version; show its manifest, and the kinds of its documents' fields."""
    from shoal_workers.index.engine_index import open_version
    from shoal_workers.index.index import current_version

    opened = open_version(current_version(_folder(settings, index_name)))
    opened.files.check_rest()
    shown = asdict(opened.manifest) | {"fields": opened.columns.kinds}
    shown["checksums"] = shown.pop("checksums")  # moved to the end, because they are long and rarely read
    echo_lines(json.dumps(shown, indent=2, ensure_ascii=False))


def _folder(settings: Settings, name: str) -> Path:
    """Return the folder of an index, from its name or from the path of the folder. The name has priority."""
    from shoal_workers.index.long_jobs import where_is

    is_known = name in settings.index_folders() or (name.strip(".") and (settings.index_home_folder / name).is_dir())
    if "/" in name or (Path(name).is_dir() and not is_known):
        return Path(name)
    return where_is(settings, name)


def _switch(settings: Settings, index_name: str, version: str | None) -> None:
    """Publish `version`, or without one the version before, and delete changes that all versions contain from Redis."""
    from shoal.client.redis.client import Client
    from shoal_workers.index.build.document_encoder import served_digest
    from shoal_workers.index.long_jobs import changes_of, name_of
    from shoal_workers.index.versions import publish, rollback

    folder = _folder(settings, index_name)
    with Client.from_settings(settings) as client:
        digest, changes = None, None
        with suppress(Unavailable):
            digest = served_digest(client)
            changes = changes_of(name_of(settings, folder), client)
        if digest is None:
            click.echo("no pool answers: the version's model is not compared with the workers' model", err=True)
        if version is None:
            version = rollback(folder, digest)
        else:
            publish(folder, version, digest)
        click.echo(f"{folder}: version {version} is published")
        upload_changes(settings, folder)
        if changes:
            changes.forget_folded(folder)
