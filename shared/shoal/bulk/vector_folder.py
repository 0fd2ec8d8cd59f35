"""A folder of vectors and its manifest. A lock and renames keep the folder consistent at any moment.

vectors/manifest.json           source, arguments, model, and the rows and checksums of each finished part
vectors/bad-rows.jsonl          the rows that were left out, in order, each with its reason
vectors/part-00000.safetensors  the vectors of the first part, float32 `[rows, dimension]`
vectors/part-00000.ids.jsonl    the ids of these rows, one JSON string a line

In the format .npy, a part has the same two files. In .parquet or .jsonl, a part is a single file with ids and vectors.
The manifest has no times and no paths of folders, so two runs with the same arguments write the same bytes.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.bulk.part_file import SUFFIXES, write_files
from shoal.contract.excerpt import excerpt
from shoal.errors import FileError, FolderBusy, InvalidRequest, ModelMismatch
from shoal.process.durable_file import replace_file, sync_folder

MANIFEST, BAD_ROWS = "manifest.json", "bad-rows.jsonl"

#: Version of this layout. It rises by one whenever the names or contents of the files change.
LAYOUT = 1

#: Fields of the manifest that, like the model, must be unchanged when a run is continued.
_ARGUMENTS = ("source", "text_column", "id_column", "format", "part_rows", "options")


@dataclass(frozen=True, slots=True)
class Part:
    """A finished part: `num_rows` rows of the source from `first_row` on, counted from 0.

    `num_bad` of these rows were left out. `checksums` and `sizes` map each file's name to its SHA-256 and size.
    """

    first_row: int
    num_rows: int
    num_bad: int
    checksums: dict[str, str]
    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class VectorManifest:
    """A description of a folder of vectors. `is_complete` is True once the parts cover all rows of the source.

    The `fingerprint` changes with everything that vectors depend on, except texts and options.
    """

    source: dict[str, Any]
    text_column: str | None
    id_column: str | None
    format: str
    part_rows: int
    options: dict[str, Any]
    model: str
    digest: str
    dimension: int
    fingerprint: str
    parts: tuple[Part, ...] = ()
    is_complete: bool = False
    layout: int = LAYOUT

    @property
    def num_rows(self) -> int:
        """Number of rows of the source in finished parts, bad rows included."""
        return sum(part.num_rows for part in self.parts)

    @property
    def num_bad(self) -> int:
        """Number of bad rows in finished parts."""
        return sum(part.num_bad for part in self.parts)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest in a folder. Raises FileError if it cannot be read, or has another layout."""
        try:
            values = json.loads((folder / MANIFEST).read_text("utf-8"))
            if (layout := values.get("layout")) != LAYOUT:
                raise ValueError(f"it has layout {excerpt(layout)}, this version of Shoal reads {LAYOUT}")
            return cls(**values | {"parts": tuple(Part(**part) for part in values["parts"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise FileError(f"{folder / MANIFEST} cannot be read ({error!s:.200}): write to another folder") from error

    def check_same(self, other: "VectorManifest", folder: Path) -> None:
        """Raise InvalidRequest or ModelMismatch if a run that would write `other` cannot continue this folder."""
        for name in _ARGUMENTS:
            before, now = getattr(self, name), getattr(other, name)
            if isinstance(before, dict) and isinstance(now, dict):  # the message shows only the values that differ
                changed = [key for key in before | now if before.get(key) != now.get(key)]
                before, now = ({key: each.get(key) for key in changed} for each in (before, now))
            if before != now:
                raise InvalidRequest(
                    f"{folder} was begun with {name} {excerpt(before)}, and not {excerpt(now)}: "
                    "give it as before, or write to another folder"
                )
        if (self.digest, self.dimension, self.fingerprint) != (other.digest, other.dimension, other.fingerprint):
            raise ModelMismatch(
                f"{folder} was begun with the model {self.model} ({self.digest!s:.12}), and the workers have "
                f"{other.model} ({other.digest:.12}), or another engine, precision, prompts or length of texts: write "
                "to another folder"
            )

    def without_damaged(self, folder: Path) -> "VectorManifest":
        """Return the manifest with the parts before the first part that lacks a file or has a file of another size."""
        for number, part in enumerate(self.parts):
            for name in _file_names(number, self.format):
                path = folder / name
                if not path.exists() or path.stat().st_size != part.sizes.get(name):
                    return replace(self, parts=self.parts[:number], is_complete=False)
        return self


class VectorFolder:
    """A folder of vectors that this process alone writes.

    Each file is written under a name that begins with a dot, and renamed once it is on disk. The manifest is renamed
    after the files that it names. So whenever the process ends, the manifest names only complete parts, and the next
    run overwrites all other files.
    """

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Make the folder if it is missing, and lock it until the end of the `with` block.

        Raises InvalidRequest if the folder has other files and no manifest, and FolderBusy while another process holds
        the lock.
        """
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder = cls(path)
            for entry in [] if folder.has_manifest() else path.iterdir():
                if not entry.name.startswith(".") and entry.name != BAD_ROWS:
                    raise InvalidRequest(
                        f"{path} holds other files, such as {entry.name}, and no {MANIFEST}: name a new folder"
                    )
            yield folder
        except BlockingIOError as error:
            raise FolderBusy(
                f"another process writes into {path}: wait until it has ended, or name another folder"
            ) from error
        finally:
            os.close(lock)

    def has_manifest(self) -> bool:
        """Return True if a run has begun in this folder."""
        return (self.path / MANIFEST).exists()

    def save(self, manifest: VectorManifest) -> None:
        """Replace the manifest in the folder."""
        replace_file(self.path / MANIFEST, json.dumps(asdict(manifest), indent=1, ensure_ascii=False) + "\n")

    def write_part(
        self, number: int, format_name: str, ids: Sequence[str], vectors: NDArray[np.float32]
    ) -> tuple[dict[str, str], dict[str, int]]:
        """Write a part, and return the checksums and sizes of its files by name once they are on disk."""
        names = _file_names(number, format_name)
        scratch = [self.path / f".{name}" for name in names]
        checksums, sizes = {}, {}
        try:
            write_files(format_name, scratch, ids, vectors)
            for name, path in zip(names, scratch, strict=True):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    checksums[name] = hashlib.file_digest(file, "sha256").hexdigest()
                    sizes[name] = file.tell()
                path.rename(self.path / name)
        finally:
            for path in scratch:
                path.unlink(missing_ok=True)
        sync_folder(self.path)
        return checksums, sizes


def _file_names(number: int, format_name: str) -> list[str]:
    return [f"part-{number:05}{suffix}" for suffix in SUFFIXES[format_name]]
