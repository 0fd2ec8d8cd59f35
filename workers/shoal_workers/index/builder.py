"""Building an index from a file of documents."""

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np

from shoal.errors import BadDocument, DiskFull
from shoal.jobs import DOCUMENT_PROMPTS, Options
from shoal.records.document import Document
from shoal.records.source import Source
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, TokenizedText
from shoal_workers.index.array_file import open_array, write_header
from shoal_workers.index.index import publish
from shoal_workers.index.manifest import DOCUMENTS, FILES, MANIFEST, OFFSETS, VECTORS, Manifest, checksum
from shoal_workers.index.quantisation import QuantisedVectors

#: Documents embedded at a time: enough to sort by length, few enough to show progress.
CHUNK = 512

#: Versions that stay in the folder: the current one and the one before, which a worker may still be opening.
KEPT_VERSIONS = 2

Progress = Callable[[int], object]


def build(source: Source, out: Path, encoder: Encoder, count: int, progress: Progress) -> Manifest:
    """Build a new version of the index in `out` and make it the current one.

    `count` is the number of documents, from `source.check()`; `progress` is called with the number of further documents
    that are done. Raises DiskFull, and BadDocument if the source has changed since it was checked; the version that was
    current before then stays current.
    """
    out.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(out)
    version = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    scratch = out / f".building-{version}"
    with _disk_full(out), _scratch(scratch):
        _write_documents(scratch, source, encoder, count, progress)
        manifest = _finish(scratch, version, source, encoder, count)
        scratch.rename(out / version)
        publish(out, version)
    _remove_old(out, version)
    return manifest


def _write_documents(folder: Path, source: Source, encoder: Encoder, count: int, progress: Progress) -> None:
    """Write the documents, their vectors and their offsets, in constant memory."""
    batcher: Bucketing[TokenizedText] = Bucketing(2_048, encoder.model.shares_rows)
    prompt = encoder.prompt(Options(), DOCUMENT_PROMPTS)
    done = 0
    with (
        (folder / VECTORS).open("wb") as vectors,
        (folder / DOCUMENTS).open("wb") as documents,
        (folder / OFFSETS).open("wb") as offsets,
    ):
        write_header(vectors, np.float32, (count, encoder.model.dimension))
        write_header(offsets, np.int64, (count + 1,))
        offsets.write(np.int64(0).tobytes())
        for chunk in _chunks(source):
            vectors.write(encoder.embed([document.text for document in chunk], Options(), prompt, batcher).tobytes())
            ends = []
            for document in chunk:
                documents.write(_line(document))
                ends.append(documents.tell())
            offsets.write(np.array(ends, np.int64).tobytes())
            done += len(chunk)
            progress(len(chunk))
    if done != count:
        raise BadDocument(
            f"{source.path} has {done:,} documents and had {count:,} when it was checked: build when it is complete"
        )


def _finish(folder: Path, version: str, source: Source, encoder: Encoder, count: int) -> Manifest:
    """Write the quantised vectors, then the manifest."""
    model = encoder.model
    vectors = open_array(folder / VECTORS, np.float32, (count, model.dimension))
    quantised_width = QuantisedVectors.write(folder, vectors)
    manifest = Manifest(
        version=version,
        built_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        source=source.name,
        model=model.name,
        digest=model.digest,
        pooling=model.pooling,
        dimension=model.dimension,
        count=count,
        quantised_width=quantised_width,
        checksums={name: checksum(folder / name) for name in FILES},
    )
    manifest.save(folder)
    return manifest


def _chunks(source: Source) -> Iterator[list[Document]]:
    documents = iter(source)
    while chunk := list(islice(documents, CHUNK)):
        yield chunk


def _line(document: Document) -> bytes:
    return (
        json.dumps({"id": document.id, "text": document.text, **document.fields}, ensure_ascii=False) + "\n"
    ).encode()


@contextmanager
def _disk_full(out: Path) -> Iterator[None]:
    """Turn the errors of a full disk into DiskFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in DiskFull.ERRNOS:
            raise
        raise DiskFull(
            f"no room to build an index in {out} ({error.strerror}): free some space; an index there is unchanged"
        ) from error


@contextmanager
def _scratch(folder: Path) -> Iterator[None]:
    """Make the folder, lock it while it is filled, and remove it if it was not renamed."""
    folder.mkdir()
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(out: Path) -> None:
    """Remove the folders of builds that were killed: no process holds their locks."""
    for folder in out.glob(".building-*"):
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _remove_old(out: Path, version: str) -> None:
    found = [path.parent for path in out.glob(f"[!.]*/{MANIFEST}") if path.parent.name != version]
    versions = sorted(found, key=lambda folder: folder.stat().st_mtime_ns)
    for folder in versions[: len(versions) + 1 - KEPT_VERSIONS]:
        shutil.rmtree(folder, ignore_errors=True)
