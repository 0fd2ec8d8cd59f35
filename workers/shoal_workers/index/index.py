"""An index: documents and their vectors in an immutable, versioned folder that workers map into memory.

my-index/current                          the name of the version to serve
my-index/<version>/manifest.json          model, digest, dimension, count, checksums, when built
my-index/<version>/vectors.safetensors    `vectors` float32 [count, dimension], normalised; `offsets` int64 [count + 1]
my-index/<version>/sketch.safetensors     `codes` int8 [count, sketch_width], `basis` and `scales`: see `Sketch`
my-index/<version>/documents.jsonl        one document a line; `offsets` says where each begins
"""

import hashlib
import json
import logging
import mmap
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from shoal import wire
from shoal.errors import IndexCorrupt, IndexMismatch, IndexNotFound, InvalidText
from shoal_workers.index import tensorfile
from shoal_workers.index.quantised import Sketch
from shoal_workers.index.search import ExactSearch
from shoal_workers.model.model import Model

log = logging.getLogger(__name__)

VECTORS, SKETCH, DOCUMENTS = "vectors.safetensors", "sketch.safetensors", "documents.jsonl"
MANIFEST, CURRENT = "manifest.json", "current"

#: A version is a folder of the index: never another place.
_VERSION = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an index says of itself.

    `sketch_width` is the size of the sketch in bytes a document; 0 in an index that was built before there were any.
    """

    version: str
    built_at: str
    source: str
    model: str
    digest: str
    pooling: str
    dimension: int
    count: int
    checksums: dict[str, str]
    sketch_width: int = 0

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest of the version in `folder`.

        Raises IndexCorrupt.
        """
        try:
            manifest = cls(**json.loads((folder / MANIFEST).read_text("utf-8")))
            manifest._check_types()
            manifest._check_values()
            return manifest
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise IndexCorrupt(f"{folder / MANIFEST} cannot be read ({error!s:.200}): build the index again") from error

    def _check_types(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if type(value := getattr(self, name)) is not (get_origin(kind) or kind):
                raise TypeError(f"{name} is {value!r}")

    def _check_values(self) -> None:
        names = {VECTORS, DOCUMENTS} | ({SKETCH} if self.sketch_width else set())
        if self.checksums.keys() != names:
            raise ValueError(f"checksums are of {sorted(self.checksums)!r:.200}, not of {sorted(names)}")
        if min(self.count, self.dimension) < 1 or self.sketch_width < 0:
            raise ValueError(f"{self.count} documents of {self.dimension} dimensions, {self.sketch_width} bytes each")

    def save(self, folder: Path) -> None:
        """Writes what `read` reads."""
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", "utf-8")


class Index:
    """One opened version of an index. Reading is thread-safe; large searches are shared by several `threads`."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int = 1):
        self.folder = folder
        self.manifest = manifest
        count, dimension, width = manifest.count, manifest.dimension, manifest.sketch_width
        self.vectors = tensorfile.mapped(folder / VECTORS, "vectors", np.float32, (count, dimension))
        self._offsets = tensorfile.mapped(folder / VECTORS, "offsets", np.int64, (count + 1,))
        if not width:
            log.warning("the index in %s has no sketch, and one is made now: build it again to start quickly", folder)
        sketch = Sketch.open(folder / SKETCH, count, dimension, width) if width else Sketch.of(self.vectors)
        self._nearest = ExactSearch(self.vectors, sketch, threads)
        self._check_offsets()
        with (folder / DOCUMENTS).open("rb") as file:
            self._documents = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @classmethod
    def open(cls, folder: Path, threads: int = 1) -> Self:
        """The current version of the index in `folder`, its files checked against their checksums.

        Raises IndexNotFound or IndexCorrupt.
        """
        version = current_version(folder)
        manifest = Manifest.read(version)
        for name, wanted in manifest.checksums.items():
            if not (version / name).resolve().is_relative_to(folder.resolve()):
                raise IndexCorrupt(f"{version / name} leads out of {folder}: build the index again")
            if (found := checksum(version / name)) != wanted:
                raise IndexCorrupt(
                    f"{version / name} is not what was built (checksum {found[:8]}…, not {wanted[:8]}…): build it again"
                )
        return cls(version, manifest, threads)

    def check_model(self, model: Model) -> None:
        """Raises IndexMismatch unless the index was built with exactly this model."""
        if self.manifest.digest != model.digest:
            raise IndexMismatch(
                f"{self.folder} was built with {self.manifest.model} ({self.manifest.digest[:12]}…), but this worker "
                f"runs {model.name} ({model.digest[:12]}…): build it again, or set SHOAL_MODEL to that model"
            )

    def document(self, row: int) -> dict[str, Any]:
        """The document of that row: its `id`, `text` and other fields.

        Raises IndexCorrupt for one that no build wrote: it could not be sent.
        """
        line = self._documents[self._offsets[row] : self._offsets[row + 1]]
        try:
            document = json.loads(line.decode())
            wire.pack(document)
            if not _is_document(document, line):
                raise ValueError("it has no id or no text, or is nested too deeply")
        except (ValueError, OverflowError, RecursionError, InvalidText) as error:
            raise IndexCorrupt(
                f"document {row} in {self.folder / DOCUMENTS} cannot be read ({type(error).__name__}): build it again"
            ) from error
        return dict(document)

    def _check_offsets(self) -> None:
        offsets, end = self._offsets, (self.folder / DOCUMENTS).stat().st_size
        if offsets[0] != 0 or offsets[-1] != end or not (offsets[1:] > offsets[:-1]).all():
            raise IndexCorrupt(f"{self.folder / VECTORS} says wrongly where documents begin: build the index again")

    def search(self, queries: NDArray[np.float32], k: int) -> list[list[dict[str, Any]]]:
        """The `k` documents of highest cosine for each of `[queries, dimension]` normalised vectors, best first.

        Exact, whatever the number of documents. Of equal ones, the one that was first in the source comes first. Raises
        IndexCorrupt for numbers or documents that no build wrote.
        """
        try:
            rows, scores = self._nearest.find(queries, k)
        except IndexError as error:  # the sketch's bounds leave out what they must not
            raise IndexCorrupt(f"{self.folder / SKETCH} is not of {VECTORS}: build the index again") from error
        return [self._hits(*best) for best in zip(rows, scores, strict=True)]

    def _hits(self, rows: NDArray[np.intp], scores: NDArray[np.float32]) -> list[dict[str, Any]]:
        hits = []
        for row, score in zip(rows, scores, strict=True):
            document = self.document(row)
            hits.append({"id": document.pop("id"), "score": float(score), **document})
        return hits


def _is_document(value: Any, line: bytes) -> bool:
    if not isinstance(value, dict) or type(value.get("id")) is not str or type(value.get("text")) is not str:
        return False
    return line.count(b"[") + line.count(b"{") <= wire.MAX_DEPTH or wire.is_json(value)


def current_version(folder: Path) -> Path:
    """The folder of the version to serve.

    Raises IndexNotFound or IndexCorrupt.
    """
    try:
        version = (folder / CURRENT).read_text("utf-8").strip()
        if not _VERSION.fullmatch(version):
            raise IndexCorrupt(f"{folder / CURRENT} names {version!r:.100}, which is no version: build the index again")
        return folder / version
    except OSError as error:
        raise IndexNotFound(
            f"{folder} holds no index: build one with `shoal index build SOURCE --out {folder}`"
        ) from error
    except UnicodeDecodeError as error:
        raise IndexCorrupt(f"{folder / CURRENT} does not name a version ({error}): build the index again") from error


def checksum(path: Path) -> str:
    """SHA-256 of a file.

    Raises IndexCorrupt if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise IndexCorrupt(f"{path} cannot be read ({error.strerror}): build the index again") from error


def publish(folder: Path, version: str) -> None:
    """Makes `version` the one to serve, in one step."""
    scratch = folder / f".{CURRENT}-{os.getpid()}"
    scratch.write_text(version + "\n", "utf-8")
    scratch.replace(folder / CURRENT)
