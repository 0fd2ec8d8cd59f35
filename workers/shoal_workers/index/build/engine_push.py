"""Pushing a version of an index into a vector engine, and removing the tables of versions that are gone."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from zlib import crc32

from shoal.errors import IndexCorrupt, IndexNotFound, InvalidRequest, Unavailable
from shoal.process.durable_file import locked, replace_file, sync_files, sync_folder
from shoal_workers.index.build.merged_changes import IndexChanges
from shoal_workers.index.engines.engine import WRITE_S, Table, open_table
from shoal_workers.index.engines.fields import types_of, values_of
from shoal_workers.index.files.documents import to_line
from shoal_workers.index.files.manifest import ENGINE_FILES
from shoal_workers.index.index import Index
from shoal_workers.index.versions import changing, list_versions

#: A file beside the versions of an index. Each line is the address of a table that a push began to write. A table
#: without a version is removed after the next push.
TABLES = ".tables"

#: A push holds a lock on this file.
LOCK = ".pushing"

#: Number of rows that are written in one call.
ROWS_AT_ONCE = 500

#: A table's name, of at most 63 characters, begins with at most this many characters of the index's name.
_NAME_CHARS = 30


def push(
    folder: Path,
    to: str,
    password: str,
    report: Callable[[int, int], object],
    changes: IndexChanges | None = None,
) -> str:
    """Write the rows of a version into an engine, and return the name of the new version, which is searched there.

    The current version is written, or the newest one in files if the current one is in an engine. An interrupted push
    is continued. `report` is called with the number of rows written and of all rows. Raises IndexNotFound,
    IndexCorrupt, InvalidRequest for a bad address, an index of chunks, or `changes` that the version lacks, IndexBusy
    during another push, MissingExtra, and Unavailable if the engine does not answer.
    """
    with locked(folder, LOCK, work="push"):
        index = _open_source(folder)
        with suppress(Unavailable):
            if changes and next(changes.since(index.manifest.changes_through), None):
                raise InvalidRequest(f"{index.folder} lacks later changes of documents: build and publish it again")
        address = f"{to}#{folder.resolve().name[:_NAME_CHARS]}-{index.folder.name}"
        table = open_table(address, password, WRITE_S)
        with changing(folder):
            _note(folder, [*_noted(folder), address])
        try:
            _write(index, table, report)
            if (count := table.count()) != index.manifest.count:
                table.drop()  # the next push then starts from the first row
        except table.outages as error:
            reason = f"({type(error).__name__}): start it, or check SHOAL_ENGINE_PASSWORD, and push again"
            raise Unavailable(f"{address} does not answer {reason}") from error
        except table.refusals as error:
            reason, _, _ = str(error).partition("\n")  # later lines may quote values
            raise InvalidRequest(f"{address} cannot hold the index: {reason}") from error
        if count != index.manifest.count:
            raise IndexCorrupt(f"{address} has {count:,} rows after {index.manifest.count:,} were written: push again")
        return _save(folder, index, address)


def remove_tables(folder: Path, password: str) -> list[str]:
    """Remove the tables that no version of the index needs; return the addresses at which that fails.

    Raises IndexBusy during a push, which may be writing one of these tables.
    """
    with locked(folder, LOCK, work="push"):
        manifests = [version.manifest for version in list_versions(folder)]
        if None in manifests:
            return []  # any of the tables may belong to a version that cannot be read
        wanted, failed = {manifest.engine for manifest in manifests if manifest}, []
        for address in set(_noted(folder)) - wanted:
            table = open_table(address, password, WRITE_S)
            try:
                table.drop()
            except (*table.outages, *table.refusals):
                failed.append(address)
        with changing(folder):
            _note(folder, [address for address in _noted(folder) if address in wanted or address in failed])
        return failed


def _open_source(folder: Path) -> Index:
    """Open the version to push, and compare all its files with their checksums."""
    for version in sorted(list_versions(folder), key=lambda version: not version.is_current):
        if version.manifest and not version.manifest.engine:
            index = Index.open_version(version.folder)
            index.files.check_rest()
            if version.manifest.chunk_tokens:
                raise InvalidRequest(f"{version.folder} has chunks, which no engine groups: build it without them")
            if not version.manifest.dimension:
                raise InvalidRequest(f"{version.folder} has words alone, and an engine searches vectors: use the files")
            return index
    raise IndexNotFound(f"{folder} has no version of files to push: build one with --no-publish")


def _write(index: Index, table: Table, report: Callable[[int, int], object]) -> None:
    """Write the rows that the table lacks. The last group of an interrupted push is written again."""
    count = index.manifest.count
    table.create(index.manifest.dimension, types_of(index.columns))
    first = table.count() // ROWS_AT_ONCE * ROWS_AT_ONCE
    values = islice(values_of(index.columns, count), first, None)
    for start in range(first, count, ROWS_AT_ONCE):
        stop = min(count, start + ROWS_AT_ONCE)
        documents = [to_line(index.document_of(row, index.live)).decode() for row in range(start, stop)]
        table.add(start, index.vectors[start:stop], documents, list(islice(values, stop - start)))
        report(stop, count)
    table.finish()


def _noted(folder: Path) -> list[str]:
    """Return the addresses of all tables that pushes began to write."""
    with suppress(FileNotFoundError):
        return (folder / TABLES).read_text("utf-8").splitlines()
    return []


def _note(folder: Path, addresses: list[str]) -> None:
    replace_file(folder / TABLES, "".join(f"{address}\n" for address in dict.fromkeys(addresses)))


def _save(folder: Path, index: Index, address: str) -> str:
    """Write the folder of the new version in one step, and return its name, which depends on the address."""
    name = f"{index.folder.name}-{crc32(address.encode()):08x}"
    scratch = folder / f".{name}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for file in ENGINE_FILES:
        shutil.copyfile(index.folder / file, scratch / file)
    checksums = {file: index.manifest.checksums[file] for file in ENGINE_FILES}
    manifest = replace(index.manifest, version=name, engine=address, checksums=checksums)
    replace(manifest, language="", token_digest="", token_width=0, num_tokens=0).save(scratch)
    sync_files(scratch)
    with changing(folder):
        if not (folder / name).exists():
            scratch.rename(folder / name)
            sync_folder(folder)
    shutil.rmtree(scratch, ignore_errors=True)
    return name
