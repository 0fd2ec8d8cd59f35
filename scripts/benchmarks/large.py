"""A large index of documents that are made, for approximate search. Its files are written as a build writes them.

A build of ten million documents would read and compare as many texts, which takes a quarter of an hour more.
"""

import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from stack import HOME, model

from benchmarks.indexes import KINDS, NUM_MADE, Vectors
from benchmarks.plan import say
from shoal_workers.index.build.cells import about_cells, find_margins, write_inverted_file
from shoal_workers.index.build.document_encoder import ModelInfo
from shoal_workers.index.files.array_file import open_array, save_array, write_header
from shoal_workers.index.files.columns import Column, save_columns
from shoal_workers.index.files.hash_table import HashTable, hash_of
from shoal_workers.index.files.manifest import (
    CELL_FILES,
    CHANGES,
    DOCUMENTS,
    FILES,
    HASHES,
    IDS,
    MANIFEST,
    OFFSETS,
    VECTORS,
    Manifest,
    checksum,
)
from shoal_workers.index.lexical.lexical_file import write_lexical
from shoal_workers.index.map.map_axes import write_map
from shoal_workers.index.vectors.inverted_file import InvertedFile
from shoal_workers.index.vectors.quantisation import QuantisedVectors
from shoal_workers.index.versions import make_current

#: The name of the only version, and documents made at a time.
VERSION, MADE_AT_ONCE = "made", 8_192

#: Numbers in the field `part`: one of them leaves 1 in 1,000 documents.
NUM_PARTS = 1_000


def large_index(count: int, real: Vectors, words: Sequence[str]) -> Path:
    """Return an index of mixtures of real vectors, for approximate search; make it if it is missing.

    Each document has two of the `words`. A run that was interrupted goes on with the first file that is not complete.
    """
    folder = HOME / "bench" / f"large-{count}-{model().digest[:8]}"
    version = folder / VERSION
    if (version / MANIFEST).exists():
        return folder
    say(f"making an index of {count:,} synthetic vectors in {folder}")
    version.mkdir(parents=True, exist_ok=True)
    dimension = real.shape[1]
    _once(version, "vectors", lambda: _write_vectors(version, count, real))
    vectors = open_array(version / VECTORS, np.float32, (count, dimension))
    width = int(_once(version, "codes", lambda: QuantisedVectors.write(version, vectors, _said("codes"))))
    _once(version, "documents", lambda: _write_documents(version, count, words))
    _once(version, "map", lambda: write_map(version, vectors, _said("map")))
    quantised = QuantisedVectors.open(version, count, dimension, width)
    say_cells, say_margins = _said("cells"), _said("margins")
    num = int(_once(version, "cells", lambda: len(write_inverted_file(version, vectors, quantised, say_cells).sizes)))
    file = InvertedFile.open(version, count, dimension, width, num)
    margins = _once(version, "margins", lambda: json.dumps(find_margins(vectors, quantised, file, say_margins)))
    _write_manifest(version, count, dimension, width, about_cells(file, *json.loads(margins)))
    make_current(folder, VERSION)
    return folder


def _once(version: Path, name: str, make: Callable[[], object]) -> str:
    """Make a part of the version unless it is made already; return what `make` has returned, as a string."""
    done = version / f"{name}.done"
    if not done.exists():
        started = time.perf_counter()
        result = str(make())
        say(f"{name}: {time.perf_counter() - started:.0f} s")
        done.write_text(result)
    return done.read_text()


def _said(step: str) -> Callable[[float], None]:
    """Return a call that tells each tenth of a step that is done."""
    told = set[int]()

    def tell(part: float) -> None:
        if (tenth := int(10 * part)) not in told:
            told.add(tenth)
            say(f"{step}: {tenth} tenths")

    return tell


def _write_vectors(version: Path, count: int, real: Vectors) -> None:
    tell = _said("vectors")
    with (version / VECTORS).open("wb") as file:
        write_header(file, np.float32, (count, real.shape[1]))
        for group, start in enumerate(range(0, count, NUM_MADE)):
            tell(start / count)
            made = KINDS["mixtures"](np.random.default_rng([7, group]), real, NUM_MADE)
            made /= np.linalg.norm(made, axis=1, keepdims=True)
            file.write(made[: count - start].tobytes())


def _write_documents(version: Path, count: int, words: Sequence[str]) -> None:
    """Write the documents, where each begins, the hashes of texts and ids, and the column of the field `part`.

    Only the words of the first few are indexed.
    """
    places = np.random.default_rng(7).integers(len(words), size=(count, 2), dtype=np.int32)
    sizes, text_hashes, id_hashes = np.empty(count, np.int64), bytearray(), bytearray()
    tell = _said("documents")
    with (version / DOCUMENTS).open("wb") as file:
        for start in range(0, count, MADE_AT_ONCE):
            tell(start / count)
            lines = []
            for number, (first, second) in enumerate(places[start : start + MADE_AT_ONCE].tolist(), start):
                text = f"{words[first]} {words[second]}"
                lines.append(f'{{"id": "{number}", "text": "{text}", "part": {number % NUM_PARTS}}}\n'.encode())
                text_hashes += hash_of(text)
                id_hashes += hash_of(str(number))
            sizes[start : start + len(lines)] = [*map(len, lines)]
            file.write(b"".join(lines))
            if not start:
                file.flush()
                write_lexical(version, len(lines), "none", lambda _: None)
    save_array(version / OFFSETS, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))
    HashTable.of(text_hashes).save(version, HASHES)
    HashTable.of(id_hashes).save(version, IDS)
    (version / CHANGES).write_bytes(b"")
    save_columns(version, [_column(count)], 0)


def _column(count: int) -> Column:
    codes = np.arange(count, dtype=np.int32) % NUM_PARTS
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(codes, minlength=NUM_PARTS))])
    rows = np.argsort(codes, kind="stable").astype(np.int32)
    return Column("part", "number", np.arange(NUM_PARTS, dtype=np.float64), starts, rows, codes[None])


def _write_manifest(version: Path, count: int, dimension: int, width: int, cells: dict[str, Any]) -> None:
    of = ModelInfo.of(model(), "made")
    names = FILES + (CELL_FILES if cells else ())
    manifest = Manifest(
        version=VERSION,
        built_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        source="made",
        model=of.name,
        digest=of.digest,
        pooling=of.pooling,
        dimension=dimension,
        count=count,
        quantised_width=width,
        checksums={name: checksum(version / name) for name in names},
        num_documents=count,
        **cells,
    )
    for done in version.glob("*.done"):
        done.unlink()
    manifest.save(version)
