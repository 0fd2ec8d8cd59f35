"""The manifest of a folder of vectors: their source, their model, and the parts that are finished.

vectors/manifest.json           source, arguments, model, and the rows and checksums of each finished part
vectors/bad-rows.jsonl          rows that were left out, in order, with the reason of each
vectors/part-00000.safetensors  the vectors of the first part, float32 `[rows, dimension]`
vectors/part-00000.ids.jsonl    the ids of its rows, one JSON string a line

A part of .npy files is alike; one of .parquet or .jsonl is a single file with ids and vectors. The manifest holds no
time and no place, so that two runs of one task write the same bytes.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from shoal.bulk.part_file import SUFFIXES
from shoal.contract.excerpt import excerpt
from shoal.errors import FileError, InvalidRequest, ModelMismatch

MANIFEST, BAD_ROWS = "manifest.json", "bad-rows.jsonl"

#: Version of this layout, raised by one whenever the files change in name or content.
LAYOUT = 1

#: Fields of the manifest that must be the same when a run is continued; its model must be the same too.
_ARGUMENTS = ("source", "text_column", "id_column", "format", "part_rows", "options")


@dataclass(frozen=True, slots=True)
class Part:
    """A finished part: `num_rows` rows of the source from `first_row` on, counted from 0.

    `num_bad` of them were left out. `checksums` has the SHA-256 of each file, and `sizes` their bytes, by their names.
    """

    first_row: int
    num_rows: int
    num_bad: int
    checksums: dict[str, str]
    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A description of a folder of vectors. It is complete once the whole source is in its parts.

    The `fingerprint` stands for all that vectors depend on besides text and options; folders of earlier releases have
    none.
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
    parts: tuple[Part, ...] = ()
    is_complete: bool = False
    fingerprint: str = ""
    layout: int = LAYOUT

    @property
    def num_rows(self) -> int:
        """Rows of the source in finished parts, bad ones included."""
        return sum(part.num_rows for part in self.parts)

    @property
    def num_bad(self) -> int:
        """Bad rows in finished parts."""
        return sum(part.num_bad for part in self.parts)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest in a folder. Raises FileError if it cannot be read, or is of another layout."""
        try:
            values = json.loads((folder / MANIFEST).read_text("utf-8"))
            if (layout := values.get("layout")) != LAYOUT:
                raise ValueError(f"it has layout {excerpt(layout)}, this version of Shoal reads {LAYOUT}")
            manifest = cls(**values | {"parts": tuple(Part(**part) for part in values["parts"])})
            maps = [
                manifest.source,
                manifest.options,
                *(files for part in manifest.parts for files in (part.checksums, part.sizes)),
            ]
            texts = [manifest.format, manifest.model, manifest.digest, manifest.fingerprint]
            numbers = [manifest.num_rows - manifest.num_bad, manifest.dimension]
            for values, kind in ((maps, dict), (texts, str), (numbers, int), ([manifest.is_complete], bool)):
                if not all(type(value) is kind for value in values):
                    raise TypeError("a value has another type")
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise FileError(f"{folder / MANIFEST} cannot be read ({error!s:.200}): write to another folder") from error
        return manifest

    def pack(self) -> bytes:
        """Return the manifest as it is in its file."""
        return (json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n").encode()

    def check_same(self, other: "Manifest", folder: Path) -> None:
        """Raise InvalidRequest or ModelMismatch unless a run of `other` may go on with this manifest's folder."""
        for name in _ARGUMENTS:
            before, now = getattr(self, name), getattr(other, name)
            if before == now:
                continue
            if name == "source":
                raise InvalidRequest(f"{_source_change(before, now)} since {folder} was begun: write to another folder")
            raise InvalidRequest(
                f"{folder} was begun with {name} {excerpt(before)}, not {excerpt(now)}: "
                "give it as before, or write to another folder"
            )
        if (self.digest, self.dimension) != (other.digest, other.dimension):
            raise ModelMismatch(
                f"{folder} was begun with the model {self.model} ({self.digest:.12}), and the workers have "
                f"{other.model} ({other.digest:.12}): write to another folder"
            )
        if self.fingerprint != other.fingerprint:
            reason = (
                "the workers had another engine or precision, other prompts or another length of texts"
                if self.fingerprint
                else "the folder does not say with which engine, precision, prompts and length of texts"
            )
            raise ModelMismatch(f"{folder} cannot be continued, as {reason}: write to another folder")

    def without_damaged(self, folder: Path) -> "Manifest":
        """Return the manifest with the parts before the first one that lacks a file, or has one of another size."""
        kept: list[Part] = []
        for number, part in enumerate(self.parts):
            names = [f"{part_name(number)}{suffix}" for suffix in SUFFIXES[self.format]]
            if [_size(folder / name) for name in names] != [part.sizes.get(name) for name in names]:
                return replace(self, parts=tuple(kept), is_complete=False)
            kept.append(part)
        return self


def part_name(number: int) -> str:
    """Return the name of a part's files without their suffixes."""
    return f"part-{number:05}"


def _source_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if (name := before.get("name")) != now.get("name"):
        return f"the source was {excerpt(name)} and is {excerpt(now.get('name'))}"
    changed = [key for key in now if now[key] != before.get(key)]
    return f"the source {excerpt(name)} has changed ({', '.join(changed)})"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
