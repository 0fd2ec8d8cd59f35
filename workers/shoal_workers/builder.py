"""Builds an index from a file of documents."""

import errno
import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np

from shoal.errors import DiskFull
from shoal.jobs import Options
from shoal_workers import index
from shoal_workers.batcher import Batcher
from shoal_workers.document import Document, DocumentSource
from shoal_workers.encoder import DOCUMENT_PROMPTS, Encoder, Row
from shoal_workers.index import Manifest

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
    version = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    scratch = out / f".building-{version}"
    with _disk_full(out, scratch):
        scratch.mkdir()
        _write(scratch, source, encoder, count, progress)
        manifest = _manifest(version, scratch, source.path, encoder, count)
        manifest.save(scratch)
        scratch.rename(out / version)
        index.publish(out, version)
    _remove_old(out, version)
    return manifest


def _write(folder: Path, source: DocumentSource, encoder: Encoder, count: int, progress: Progress) -> None:
    batcher: Batcher[Row] = Batcher(4_096)
    prompt = encoder.prompt(Options(), DOCUMENT_PROMPTS)
    offsets = [0]
    with (folder / index.VECTORS).open("wb") as vectors, (folder / index.DOCUMENTS).open("wb") as documents:
        vectors.write(index.tensor_header(count, encoder.model.dimension))
        for chunk in _chunks(source):
            vectors.write(encoder.embed([document.text for document in chunk], Options(), prompt, batcher).tobytes())
            for document in chunk:
                documents.write(_line(document))
                offsets.append(documents.tell())
            progress(len(chunk))
        vectors.write(np.array(offsets, dtype="<i8").tobytes())


def _manifest(version: str, folder: Path, source: Path, encoder: Encoder, count: int) -> Manifest:
    model = encoder.model
    return Manifest(
        version=version,
        built_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        source=source.name,
        model=model.name,
        digest=model.digest,
        pooling=model.pooling,
        dimension=model.dimension,
        count=count,
        checksums={name: index.checksum(folder / name) for name in (index.VECTORS, index.DOCUMENTS)},
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
def _disk_full(out: Path, scratch: Path) -> Iterator[None]:
    """Removes what was half built, whatever happened, and names a full disk as such."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise DiskFull(
            f"no room to build an index in {out} ({error.strerror}): free some; what was there is as before"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_old(out: Path, version: str) -> None:
    found = [path.parent for path in out.glob(f"[!.]*/{index.MANIFEST}") if path.parent.name != version]
    versions = sorted(found, key=lambda folder: folder.stat().st_mtime_ns)
    for folder in versions[: len(versions) + 1 - KEPT_VERSIONS]:
        shutil.rmtree(folder, ignore_errors=True)
