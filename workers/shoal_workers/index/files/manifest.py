"""The manifest of a version of an index, and the names of the version's files.

my-index/current                     the name of the version to serve
my-index/history                     the versions that were published, one per line: see `versions`
my-index/.rollback                   the last rollback with a key: see `versions`
my-index/.building/                  the version of a running or interrupted build
my-index/<version>/manifest.json     model, digest, dimension, count, checksums, time of build
my-index/<version>/bad-rows.jsonl    the rows of the source that were left out, each with the reason
my-index/<version>/vectors.npy       float32 [count, dimension], normalised
my-index/<version>/quantised.npy     int8 [count, quantised_width], the codes of the vectors: see `quantisation`
my-index/<version>/basis.npy         float32 [dimension, kept], the directions of the basis
my-index/<version>/scales.npy        float64 [3], the units of the codes and the length of the longest vector
my-index/<version>/documents.jsonl   one document a line
my-index/<version>/offsets.npy       int64 [count + 1], where each document begins, and the end of the last
my-index/<version>/hashes.npy        uint64 [3, count], hashes of the texts: see `documents`
my-index/<version>/ids.npy           uint64 [3, count], hashes of the ids
my-index/<version>/fields.json       the documents' fields: see `columns`
my-index/<version>/columns.npy       uint8 [size], the values of the fields
my-index/<version>/lexical.json      language, and numbers of terms and postings: see `lexical.lexical_index`
my-index/<version>/terms.npy         uint64 [terms], the hashes of the words' stems in ascending order
my-index/<version>/term-starts.npy   int64 [terms + 1], where each term's postings begin, and the end of the last
my-index/<version>/postings.npy      int32 [postings], the rows that have the term
my-index/<version>/impacts.npy       uint8 [postings], the impact of the term in that row: see `lexical.lexical_index`
my-index/<version>/tokens.npy        int8 [tokens, width], the token vectors, if the build made any: see `token_vectors`
my-index/<version>/token-places.npy  int64 [count, 2], where each row's token vectors begin and end
my-index/<version>/changes.jsonl     the changes of documents that are not in the source: see `build.merged_changes`
"""

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self, get_origin, get_type_hints

from shoal.changes.change_log import POSITION, START
from shoal.contract.excerpt import excerpt
from shoal.errors import IndexCorrupt
from shoal_workers.index.files.checksums import FileCheck

VECTORS, DOCUMENTS, OFFSETS = "vectors.npy", "documents.jsonl", "offsets.npy"
QUANTISED, BASIS, SCALES = "quantised.npy", "basis.npy", "scales.npy"
HASHES, IDS, CHANGES = "hashes.npy", "ids.npy", "changes.jsonl"
FIELDS, COLUMNS = "fields.json", "columns.npy"
LEXICAL, TERMS, STARTS = "lexical.json", "terms.npy", "term-starts.npy"
POSTINGS, IMPACTS = "postings.npy", "impacts.npy"
TOKENS, TOKEN_PLACES = "tokens.npy", "token-places.npy"
MANIFEST = "manifest.json"

#: The file that lists the rows that a version leaves out. It has no checksum, because only people read it.
BAD_ROWS = "bad-rows.jsonl"

#: The files of the lexical index.
LEXICAL_FILES = (LEXICAL, TERMS, STARTS, POSTINGS, IMPACTS)

#: The files of token vectors, which only some versions have.
TOKEN_FILES = (TOKENS, TOKEN_PLACES)

#: Files of each version that have a checksum. The manifest has none.
FILES = (
    *(VECTORS, QUANTISED, BASIS, SCALES, DOCUMENTS, OFFSETS, HASHES, IDS, CHANGES, FIELDS, COLUMNS),
    *LEXICAL_FILES,
)

#: The files of a version whose vectors and documents are in an engine.
ENGINE_FILES = (CHANGES, FIELDS)

#: Version of this layout. It rises by one whenever the names or formats of the files change.
LAYOUT = 5

#: Largest number in a manifest: it fits into msgpack and into numpy's integers.
MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a version: its origin, its model, its size and the checksums of its files.

    `quantised_width` is the size of a quantised vector in bytes. It and `dimension` are 0 in an index of words alone.
    `language` is the language of the words, or empty if an earlier release built the version. `prompt` is the name of
    the prompt before each text, or empty for the model's default. `num_embedded` texts were embedded for this version;
    the other vectors were made for equal texts. `num_bad` rows of the source were left out. Changes of `num_changed`
    ids are folded in, from Redis up to the position `changes_through`; `num_lost` changes, or gaps between them, could
    not be read. The `fingerprint` changes with everything that vectors depend on. If `ids_are_positions`, the source
    has no column of ids. If `chunk_tokens` is not 0, each row is a chunk of at most that many tokens: `count` counts
    chunks, `num_documents` counts their documents, and neighbouring chunks share at most `chunk_overlap` tokens. The
    model with the `token_digest`, if there is one, made `num_tokens` token vectors of `token_width` numbers. `engine`
    is the address of the engine that has the vectors and documents: see `engines`. It is empty if the version's files
    have them.
    """

    version: str
    built_at: str
    source: str
    model: str
    digest: str
    pooling: str
    dimension: int
    count: int
    quantised_width: int
    checksums: dict[str, str]
    prompt: str = ""
    num_embedded: int = 0
    num_bad: int = 0
    num_changed: int = 0
    num_lost: int = 0
    changes_through: str = START
    fingerprint: str = ""
    chunk_tokens: int = 0
    chunk_overlap: int = 0
    num_documents: int = 0
    ids_are_positions: bool = False
    language: str = ""
    token_digest: str = ""
    token_width: int = 0
    num_tokens: int = 0
    engine: str = ""
    layout: int = LAYOUT

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of the version in `folder`.

        Raises IndexCorrupt if the manifest cannot be read, contradicts itself, or has another layout.
        """
        try:
            found = dict(json.loads((folder / MANIFEST).read_text("utf-8")))
            if (layout := found.get("layout")) != LAYOUT:
                raise ValueError(f"the index has layout {excerpt(layout)}, this version of Shoal reads {LAYOUT}")
            tokens = TOKEN_FILES if found.get("token_digest") else ()
            files: Collection[str] = ENGINE_FILES if found.get("engine") else (*FILES, *tokens)
            if lost := set(files) - dict(found["checksums"]).keys():
                raise ValueError(f"checksums lack {', '.join(sorted(lost))}")
            if unknown := found.keys() - get_type_hints(cls).keys():
                raise ValueError(f"another version of Shoal built it, with {', '.join(map(excerpt, sorted(unknown)))}")
            found["checksums"] = {name: str(found["checksums"][name]) for name in files}
            manifest = cls(**found)
            manifest._check()
            return manifest
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            raise IndexCorrupt(f"{folder / MANIFEST} cannot be read ({error!s:.200}): build the index again") from error

    def _check(self) -> None:
        kinds = get_type_hints(type(self))
        for name, value in asdict(self).items():
            if type(value) is not (get_origin(kinds[name]) or kinds[name]):
                raise TypeError(f"{name} is {value!r}")
            if isinstance(value, int) and not 0 <= value <= MAX_NUMBER:
                raise ValueError(f"{name} is {value}")
            if isinstance(value, str):
                value.encode()  # fails for a lone surrogate, which heartbeats cannot contain
        if self.count < 1 or (self.dimension < 1) != (self.quantised_width < 1):
            raise ValueError(
                f"count is {self.count}, dimension {self.dimension} and quantised_width {self.quantised_width}; "
                "all must be at least 1, or the last two 0"
            )
        if not POSITION.fullmatch(self.changes_through):
            raise ValueError(f"changes_through is {excerpt(self.changes_through)}, which is not a position")

    def check(self, folder: Path, names: Iterable[str], tick: Callable[[], None] = lambda: None) -> None:
        """Raise IndexCorrupt unless these files have the checksums of the version's files; call `tick` often."""
        FileCheck(folder, {name: self.checksums[name] for name in names}).check(tick)

    def save(self, folder: Path) -> None:
        """Write the manifest into the folder of its version."""
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", "utf-8")
