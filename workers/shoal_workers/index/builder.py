"""Builds an index from a file of documents."""

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

from shoal.errors import DiskFull
from shoal.jobs import Options
from shoal_workers.encoding.batcher import Batcher
from shoal_workers.encoding.encoder import DOCUMENT_PROMPTS, Encoder, Row
from shoal_workers.index import index, tensorfile
from shoal_workers.index.document import Document, DocumentSource
from shoal_workers.index.index import Manifest
from shoal_workers.index.quantised import Sketch

#: Documents embedded at a time: enough to sort by length, few enough to show progress.
CHUNK = 512

#: Versions that stay in the folder: the current one and the one before, which a worker may still be opening.
KEPT_VERSIONS = 2

Progress = Callable[[int], object]


def build(source: DocumentSource, out: Path, encoder: Encoder, count: int, progress: Progress) -> Manifest:
    """Builds a new version of the index in `out` and makes it the current one.

    `count` is what `source.check()` returned; `progress` is told how many more documents are done. Raises DiskFull; the
    version that was current before then stays so.
    """
    out.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(out)
    version = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    scratch = out / f".building-{version}"
    with _disk_full(out), _scratch(scratch):
        _write(scratch, source, encoder, count, progress)
        manifest = _manifest(version, scratch, source.path, encoder, count)
        manifest.save(scratch)
        scratch.rename(out / version)
        index.publish(out, version)
    _remove_old(out, version)
    return manifest


def _write(folder: Path, source: DocumentSource, encoder: Encoder, count: int, progress: Progress) -> None:
    batcher: Batcher[Row] = Batcher(2_048, encoder.model.shares_rows)
    prompt = encoder.prompt(Options(), DOCUMENT_PROMPTS)
    offsets = [0]
    with (folder / index.VECTORS).open("wb") as vectors, (folder / index.DOCUMENTS).open("wb") as documents:
        shapes = {"vectors": (np.float32, (count, encoder.model.dimension)), "offsets": (np.int64, (count + 1,))}
        vectors.write(tensorfile.header(shapes))
        for chunk in _chunks(source):
            vectors.write(encoder.embed([document.text for document in chunk], Options(), prompt, batcher).tobytes())
            for document in chunk:
                documents.write(_line(document))
                offsets.append(documents.tell())
            progress(len(chunk))
        vectors.write(np.array(offsets, dtype="<i8").tobytes())


def _manifest(version: str, folder: Path, source: Path, encoder: Encoder, count: int) -> Manifest:
    """Writes the sketch of the vectors, and says what was built."""
    model = encoder.model
    vectors = tensorfile.mapped(folder / index.VECTORS, "vectors", np.float32, (count, model.dimension))
    sketch_width = Sketch.write(folder / index.SKETCH, vectors)
    names = (index.VECTORS, index.SKETCH, index.DOCUMENTS)
    return Manifest(
        version=version,
        built_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        source=source.name,
        model=model.name,
        digest=model.digest,
        pooling=model.pooling,
        dimension=model.dimension,
        count=count,
        checksums={name: index.checksum(folder / name) for name in names},
        sketch_width=sketch_width,
    )


def _chunks(source: DocumentSource) -> Iterator[list[Document]]:
    documents = iter(source)
    while chunk := list(islice(documents, CHUNK)):
        yield chunk


def _line(document: Document) -> bytes:
    return (
        json.dumps({"id": document.id, "text": document.text, **document.fields}, ensure_ascii=False) + "\n"
    ).encode()


@contextmanager
def _disk_full(out: Path) -> Iterator[None]:
    """Names a full disk as such."""
    try:
        yield
    except OSError as error:
        if error.errno not in DiskFull.ERRNOS:
            raise
        raise DiskFull(
            f"no room to build an index in {out} ({error.strerror}): free some; what was there is as before"
        ) from error


@contextmanager
def _scratch(folder: Path) -> Iterator[None]:
    """Makes the folder, locks it while it is being filled, and removes what was half built, whatever happened."""
    folder.mkdir()
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(out: Path) -> None:
    """Removes what a killed build left: its folder is locked no more."""
    for folder in out.glob(".building-*"):
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _remove_old(out: Path, version: str) -> None:
    found = [path.parent for path in out.glob(f"[!.]*/{index.MANIFEST}") if path.parent.name != version]
    versions = sorted(found, key=lambda folder: folder.stat().st_mtime_ns)
    for folder in versions[: len(versions) + 1 - KEPT_VERSIONS]:
        shutil.rmtree(folder, ignore_errors=True)
