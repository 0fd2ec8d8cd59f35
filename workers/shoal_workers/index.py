"""An index: documents and their vectors in an immutable, versioned folder that workers map into memory.

my-index/current                          the name of the version to serve
my-index/<version>/manifest.json          model, digest, dimension, count, checksums, when built
my-index/<version>/vectors.safetensors    `vectors` float32 [count, dimension], normalised; `offsets` int64 [count + 1]
my-index/<version>/documents.jsonl        one document a line; `offsets` says where each begins
"""

import hashlib
import json
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexCorrupt, IndexMismatch, IndexNotFound
from shoal_workers.model import Model
from shoal_workers.selection import top_k

VECTORS, DOCUMENTS, MANIFEST, CURRENT = "vectors.safetensors", "documents.jsonl", "manifest.json", "current"

#: Fewest documents worth a thread of their own.
MIN_PART = 2_000

#: Most scores computed at a time, to bound memory: 32 MiB.
MAX_SCORES = 2**23


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an index says of itself."""

    version: str
    built_at: str
    source: str
    model: str
    digest: str
    pooling: str
    dimension: int
    count: int
    checksums: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest of the version in `folder`.

        Raises IndexCorrupt.
        """
        try:
            manifest = cls(**json.loads((folder / MANIFEST).read_text("utf-8")))
            manifest._check_types()
            return manifest
        except (OSError, ValueError, TypeError) as error:
            raise IndexCorrupt(f"{folder / MANIFEST} cannot be read ({error}): build the index again") from error

    def _check_types(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if type(value := getattr(self, name)) is not (get_origin(kind) or kind):
                raise TypeError(f"{name} is {value!r}")

    def save(self, folder: Path) -> None:
        """Writes what `read` reads."""
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", "utf-8")


class Index:
    """One opened version of an index. Reading is thread-safe.

    With several `threads`, each scores a part of the documents. BLAS would use threads of its own, which go on spinning
    after each product and take the processors from the next forward pass: keep it to one.
    """

    def __init__(self, folder: Path, manifest: Manifest, threads: int = 1):
        self.folder = folder
        self.manifest = manifest
        count, dimension = manifest.count, manifest.dimension
        self.vectors = _tensor(folder / VECTORS, "vectors", np.float32, (count, dimension))
        self._offsets = _tensor(folder / VECTORS, "offsets", np.int64, (count + 1,))
        num_parts = min(threads, max(1, count // MIN_PART))
        ends = [count * n // num_parts for n in range(num_parts + 1)]
        self._parts = [slice(start, end) for start, end in pairwise(ends)]
        self._map: Any = ThreadPoolExecutor(num_parts).map if num_parts > 1 else map
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
        """The document of that row: its `id`, `text` and other fields."""
        return dict(json.loads(self._documents[self._offsets[row] : self._offsets[row + 1]]))

    def search(self, queries: NDArray[np.float32], k: int) -> list[list[dict[str, Any]]]:
        """The `k` documents of highest cosine for each of `[queries, dimension]` normalised vectors, best first."""
        at_once = max(1, MAX_SCORES // max(1, self.manifest.count))
        hits = []
        for start in range(0, len(queries), at_once):
            rows, scores = self._best(queries[start : start + at_once], k)
            hits += [self._hits(*best) for best in zip(rows, scores, strict=True)]
        return hits

    def _best(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Rows of the best documents of each query and their scores, both `[queries, k]`, best first."""
        parts = self._map(lambda part: _best_of_part(queries, self.vectors, part, k), self._parts)
        rows, scores = (np.concatenate(found, axis=1) for found in zip(*parts, strict=True))
        best = top_k(scores, k)
        return np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1)

    def _hits(self, rows: NDArray[np.intp], scores: NDArray[np.float32]) -> list[dict[str, Any]]:
        hits = []
        for row, score in zip(rows, scores, strict=True):
            document = self.document(row)
            hits.append({"id": document.pop("id"), "score": float(score), **document})
        return hits


def _best_of_part(
    queries: NDArray[np.float32], vectors: NDArray[np.float32], part: slice, k: int
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    scores = queries @ vectors[part].T
    best = top_k(scores, k)
    return best + part.start, np.take_along_axis(scores, best, axis=1)


def current_version(folder: Path) -> Path:
    """The folder of the version to serve.

    Raises IndexNotFound or IndexCorrupt.
    """
    try:
        return folder / (folder / CURRENT).read_text("utf-8").strip()
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


def tensor_header(count: int, dimension: int) -> bytes:
    """What stands before the numbers in `vectors.safetensors`: their names, types and places.

    Written by hand because the safetensors library would copy all vectors into memory first. The format is a length of
    eight bytes, a JSON map padded with spaces, then the bytes of each tensor.
    """
    end = count * dimension * 4
    places = {
        "vectors": {"dtype": "F32", "shape": [count, dimension], "data_offsets": [0, end]},
        "offsets": {"dtype": "I64", "shape": [count + 1], "data_offsets": [end, end + 8 * (count + 1)]},
    }
    text = json.dumps(places).encode()
    text += b" " * (-len(text) % 64 - 8 + 64)  # the numbers begin at a multiple of 64 bytes
    return len(text).to_bytes(8, "little") + text


def _tensor(path: Path, name: str, dtype: type, shape: tuple[int, ...]) -> NDArray[Any]:
    """A tensor of a safetensors file, mapped into memory and not copied, as the library would."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            place = json.loads(file.read(length))[name]
        if tuple(place["shape"]) != shape:
            raise ValueError(f"{name} has shape {place['shape']}, not {list(shape)}")
        return np.memmap(path, dtype=dtype, mode="r", offset=8 + length + place["data_offsets"][0], shape=shape)
    except (OSError, ValueError, KeyError, MemoryError, OverflowError) as error:
        raise IndexCorrupt(f"{path} cannot be read ({error}): build the index again") from error
