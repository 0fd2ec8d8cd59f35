"""The manifest of a version of an index, and the names of the version's files.

my-index/current                     the name of the version to serve
my-index/history                     the versions that were published before it and it, one a line: see `versions`
my-index/.rollback                   the last rollback of a long job: see `versions`
my-index/.read-files                 the texts of the files of a folder, in SQLite: see `shoal.records.folder`
my-index/.building/                  the version that is being built, or was when its build was interrupted
my-index/<version>/manifest.json     model, digest, dimension, count, checksums, when built
my-index/<version>/build.json        the long job that built the version, and its result: see `builder`
my-index/<version>/bad-rows.jsonl    the rows of the source that were left out, each with the reason
my-index/<version>/duplicates.jsonl  the documents with the words of an earlier one, each with the id of that
my-index/<version>/near-duplicates.jsonl  those whose vectors are nearly those of an earlier one, each with its id
my-index/<version>/vectors.npy       float32 [count, dimension], normalised
my-index/<version>/quantised.npy     int8 [count, quantised_width], the codes of the vectors: see `quantisation`
my-index/<version>/basis.npy         float32 [dimension, kept], the directions that the codes are for
my-index/<version>/scales.npy        float64 [3], the units of the codes and the length of the longest vector
my-index/<version>/documents.jsonl   one document a line
my-index/<version>/offsets.npy       int64 [count + 1], where each document begins, and the end of the last
my-index/<version>/hashes.npy        uint64 [3, count], hashes of the texts: see `hash_table`
my-index/<version>/ids.npy           uint64 [3, count], hashes of the ids
my-index/<version>/fields.json       the documents' fields: see `columns`
my-index/<version>/columns.npy       uint8 [size], the values of the fields
my-index/<version>/lexical.json      language, and numbers of terms and postings: see `lexical.lexical_index`
my-index/<version>/terms.npy         uint64 [terms], the hashes of the words' stems in ascending order
my-index/<version>/term-starts.npy   int64 [terms + 1], where the postings of each begin, and the end of the last
my-index/<version>/postings.npy      int32 [postings], the rows that have the term
my-index/<version>/impacts.npy       uint8 [postings], the impact of the term in each: see `lexical.bm25`
my-index/<version>/map-places.npy    int16 [count, 2], the place of each document on the map: see `map.map_axes`
my-index/<version>/map-axes.npy      float32 [3, dimension], the axes of the map and the mean of the vectors
my-index/<version>/changes.jsonl     one line for each change that the source does not have: see `folding`
my-index/<version>/centroids.npy     float32 [num_cells, dimension], the direction of each cell: see `inverted_file`
my-index/<version>/cell-starts.npy   int64 [num_cells + 1], where the rows of each cell begin, and the end of the last
my-index/<version>/cell-rows.npy     int32 [count], the rows of the cells
my-index/<version>/cell-bits.npy     uint64 [quantised_width / 64, count], the signs of the codes of these rows

A version has the last four if it was built for approximate search. The first versions that were built for it have
`binary.npy` in their place, which is no longer read: they are searched exactly.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self, get_origin, get_type_hints

from shoal.changes.change_log import POSITION, START
from shoal.contract.excerpt import excerpt
from shoal.errors import IndexCorrupt

VECTORS, DOCUMENTS, OFFSETS = "vectors.npy", "documents.jsonl", "offsets.npy"
QUANTISED, BASIS, SCALES = "quantised.npy", "basis.npy", "scales.npy"
HASHES, IDS, CHANGES = "hashes.npy", "ids.npy", "changes.jsonl"
FIELDS, COLUMNS = "fields.json", "columns.npy"
LEXICAL, TERMS, STARTS = "lexical.json", "terms.npy", "term-starts.npy"
POSTINGS, IMPACTS = "postings.npy", "impacts.npy"
MAP_PLACES, MAP_AXES = "map-places.npy", "map-axes.npy"
CENTROIDS, CELL_STARTS, CELL_ROWS, CELL_BITS = "centroids.npy", "cell-starts.npy", "cell-rows.npy", "cell-bits.npy"
BINARY = "binary.npy"
MANIFEST = "manifest.json"

#: The file, beside the versions of an index, with the texts of files that were read for the last build.
READ_FILES = ".read-files"

#: Rows that were left out, and documents with the words of another or nearly its vector. They have no checksum: only
#: people read them.
BAD_ROWS, DUPLICATES, NEAR_DUPLICATES = "bad-rows.jsonl", "duplicates.jsonl", "near-duplicates.jsonl"

#: Files of the words of the documents.
LEXICAL_FILES = (LEXICAL, TERMS, STARTS, POSTINGS, IMPACTS)

#: Files of a version for approximate search.
CELL_FILES = (CENTROIDS, CELL_STARTS, CELL_ROWS, CELL_BITS)

#: Files of every version beside its manifest that have a checksum.
FILES = (
    *(VECTORS, QUANTISED, BASIS, SCALES, DOCUMENTS, OFFSETS, HASHES, IDS, CHANGES, FIELDS, COLUMNS),
    *LEXICAL_FILES,
    *(MAP_PLACES, MAP_AXES),
)

#: Version of this layout, raised by one whenever a folder's files change in name or content.
LAYOUT = 6

#: The files of each layout that is read. Versions of layout 2 have no hashes, so no build takes vectors from them.
#: Those before layout 5 cannot be filtered, and know no words; those before layout 6 have no map.
FILES_OF = {2: FILES[:6], 3: FILES[:7], 4: FILES[:9], 5: FILES[:-2], LAYOUT: FILES}

#: Largest difference of two scores.
MAX_MARGIN = 2.0

#: Largest number in a manifest, which fits into msgpack and the columns of numpy.
MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """A description of an index: its origin, its model, its size and the checksums of its files.

    `quantised_width` is the size of a quantised vector in bytes. `prompt` is the name of the prompt before each text,
    or empty for the model's default. `num_embedded` texts were embedded for this version; the vectors of the others are
    those of equal texts. `num_bad` rows of the source were left out. The documents are those of the source after
    `num_changed` ids were added, replaced or deleted: by the changes of the version that was current then, and those of
    its index in Redis up to the position `changes_through`; `num_lost` of
    these, or gaps between them, could not be read. Vectors may be taken for another
    version only where the `fingerprint` is the same; it is empty in versions of earlier releases.

    If `ids_are_positions`, the source has no column of ids: the id of a document is its position there, counted from 0.
    Versions of earlier releases do not say so.

    If `chunk_tokens` is not 0, each row is a chunk of at most so many tokens: `count` counts chunks, `num_documents`
    the documents that they are of, and neighbours share at most `chunk_overlap` tokens.

    If `num_cells` is not 0, the version was built for approximate search, which reads the cells that score at most
    `cell_margin` less than the nearest one, and searches exactly those rows of which at most `bit_margin` more bits
    differ from the query's than are expected. If `candidate_share` or `num_candidates` is not 0, it was built for
    that by an earlier release, and has to be built again for it.
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
    num_candidates: int = 0
    num_cells: int = 0
    cell_margin: float = 0.0
    candidate_share: float = 0.0
    bit_margin: float = 0.0
    ids_are_positions: bool = False
    layout: int = LAYOUT

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of the version in `folder`.

        Raises IndexCorrupt if it cannot be read, contradicts itself, or is of another layout.
        """
        try:
            fields = json.loads((folder / MANIFEST).read_text("utf-8"))
            if (layout := dict(fields).get("layout")) not in list(FILES_OF):
                named = "an older layout" if layout is None else f"layout {excerpt(layout)}"
                raise ValueError(f"the index has {named}, this version of Shoal reads layout {LAYOUT}")
            manifest = cls(**fields)
            manifest._check_types()
            manifest._check_values()
            return manifest
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise IndexCorrupt(f"{folder / MANIFEST} cannot be read ({error!s:.200}): build the index again") from error

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the version that have a checksum."""
        cells = CELL_FILES if self.num_cells else ()
        return FILES_OF[self.layout] + cells + ((BINARY,) if self.num_candidates else ())

    def _check_types(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if type(value := getattr(self, name)) is not (get_origin(kind) or kind):
                raise TypeError(f"{name} is {value!r}")
            if isinstance(value, int) and not 0 <= value <= MAX_NUMBER:
                raise ValueError(f"{name} is {value}")
            if isinstance(value, str):
                value.encode()  # a heartbeat tells it, and cannot hold a lone surrogate

    def _check_values(self) -> None:
        if self.checksums.keys() != set(self.files):
            raise ValueError(f"checksums are of {sorted(self.checksums)!r:.200}, not of {sorted(self.files)}")
        if min(self.count, self.dimension, self.quantised_width) < 1:
            raise ValueError(
                f"count is {self.count}, dimension {self.dimension} and quantised_width {self.quantised_width}; "
                "all must be at least 1"
            )
        if not self.num_cells <= self.count:
            raise ValueError(f"num_cells is {self.num_cells} of {self.count} rows")
        if not (0 <= self.cell_margin <= MAX_MARGIN and 0 <= self.bit_margin <= 8 * self.quantised_width):
            raise ValueError(f"cell_margin is {self.cell_margin} and bit_margin {self.bit_margin}")
        if not 0 <= self.candidate_share <= 1:
            raise ValueError(f"candidate_share is {self.candidate_share}")
        if not POSITION.fullmatch(self.changes_through):
            raise ValueError(f"changes_through is {excerpt(self.changes_through)}, which is no position")

    def save(self, folder: Path) -> None:
        """Write the manifest into the folder of its version."""
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", "utf-8")


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits.

    Raises IndexCorrupt if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise IndexCorrupt(f"{path} cannot be read ({error.strerror}): build the index again") from error
