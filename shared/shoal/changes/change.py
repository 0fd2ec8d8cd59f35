"""A change of an index: in one step, it deletes documents by their ids and adds others."""

import json
import math
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.contract import wire
from shoal.contract.excerpt import excerpt, kind
from shoal.contract.vectors import SparseVector, pack_sparse, unpack_sparse
from shoal.errors import InvalidRequest, MalformedJob, TooLarge
from shoal.records.document import RESERVED_NAMES, Document

T = TypeVar("T")

#: Largest number of ids in a change: added documents and deleted ids together.
MAX_CHANGE_IDS = 1_000

#: Size limit of a packed change, in bytes. Redis serves no other client while it receives or sends a change.
MAX_CHANGE_BYTES = 2**20

#: Largest number of ids in all changes of an index that no build has folded in yet.
MAX_CHANGES = 10_000

#: Size limit of all changes of an index that no build has folded in yet, in bytes. Every worker keeps them in memory.
MAX_CHANGES_BYTES = 64 * 2**20

#: A change counts as at least this many bytes for each value in its arrays and maps, because a worker needs memory and
#: time to read a value.
BYTES_OF_A_VALUE = 50

#: Largest number of values in the arrays and maps of a change.
MAX_CHANGE_VALUES = MAX_CHANGE_BYTES // BYTES_OF_A_VALUE

#: Greatest length of a normalised vector, because rounding makes some vectors a little longer than 1.
MAX_LENGTH = 1.01


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Ids to delete from an index, and documents to add after that. A document replaces others with the same id.

    `vectors` are the documents' vectors, normalised float32 `[len(documents), dimension]`; `digest` names their model.
    `sparse` has their sparse vectors, if the words of the index are learned; without other vectors `dimension` is 0.
    """

    documents: tuple[Document, ...]
    vectors: NDArray[np.float32]
    deleted: tuple[str, ...]
    digest: str
    made_at: float
    sparse: tuple[SparseVector, ...] = ()

    @property
    def num_values(self) -> int:
        """The number of values in the documents' arrays and maps. The number of ids has a limit of its own."""
        return wire.num_values([map_of(document) for document in self.documents])

    @property
    def num_ids(self) -> int:
        """The number of documents and deleted ids."""
        return len(self.documents) + len(self.deleted)

    def pack(self) -> bytes:
        """Return the change as bytes for `unpack`. Raises TooLarge, InvalidText and InvalidRequest."""
        fields = {
            "documents": [map_of(document) for document in self.documents],
            "vectors": self.vectors.astype("<f4", copy=False).tobytes(),
            "deleted": list(self.deleted),
            "digest": self.digest,
            "made_at": float(self.made_at),
        }
        if self.sparse:
            fields["sparse"] = pack_sparse(self.sparse)
        try:
            packed = wire.pack(fields)
            self.unpack(packed)
        except MalformedJob as error:
            raise InvalidRequest(error.message) from error
        except (TypeError, ValueError, OverflowError) as error:  # raised by msgpack
            raise InvalidRequest(f"a document has a value that cannot be sent ({error!s:.80}): leave it out") from error
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Return the change in `packed`, with read-only vectors. Raises MalformedJob, TooLarge and InvalidText."""
        if len(packed) > MAX_CHANGE_BYTES:
            raise TooLarge(f"the change has {len(packed):,} bytes and may have {MAX_CHANGE_BYTES:,}: split it")
        fields = wire.unpack(packed, MAX_CHANGE_VALUES)
        documents = tuple(_document(n, value) for n, value in enumerate(_field(fields, "documents", list)))
        deleted = tuple(_id(f"deleted[{n}]", value) for n, value in enumerate(_field(fields, "deleted", list)))
        sparse = _sparse(fields["sparse"], len(documents)) if "sparse" in fields else ()
        vectors = _vectors(_field(fields, "vectors", bytes), len(documents), may_be_empty=bool(sparse))
        made_at = _field(fields, "made_at", float)
        if not 0 <= made_at < math.inf:
            raise MalformedJob(f"made_at is {made_at}: it takes Unix seconds")
        change = cls(documents, vectors, deleted, _field(fields, "digest", str), made_at, sparse)
        if change.num_ids > MAX_CHANGE_IDS:
            raise TooLarge(f"the change has {change.num_ids:,} ids and may have {MAX_CHANGE_IDS:,}: split it")
        if not change.num_ids:
            raise MalformedJob("the change has no id: it takes at least one")
        return change


def is_position(document_id: str) -> bool:
    """Return True if the id may be a position. Without a column of ids, a document's id is its position."""
    return document_id.isascii() and document_id.isdigit()


def _field(fields: dict[str, Any], name: str, wanted: type[T]) -> T:
    value = fields.get(name)
    if type(value) is not wanted:
        found = kind(value) if name in fields else "missing"
        raise MalformedJob(f"{name} is {found}: docs/protocol.md has the fields of a change")
    return value


def size_of(change: Change, packed: bytes) -> int:
    """Return the number of bytes that a change counts toward `MAX_CHANGES_BYTES`."""
    return max(len(packed), BYTES_OF_A_VALUE * change.num_values)


def map_of(document: Document) -> dict[str, Any]:
    """Return the map for a document in a change."""
    return {"id": document.id, "text": document.text, **document.fields}


def _document(number: int, value: Any) -> Document:
    where = f"documents[{number}]"
    if not isinstance(value, dict):
        raise MalformedJob(f"{where} is {kind(value)}: it takes a map")
    others = {name: other for name, other in value.items() if name not in ("id", "text")}
    document = Document(_id(f"{where}.id", value.get("id")), value.get("text", ""), others)
    if not isinstance(document.text, str) or not document.text.strip():
        raise MalformedJob(f"{where}.text is {kind(document.text)}: it takes a string that is not blank")
    if taken := RESERVED_NAMES & others.keys():
        raise MalformedJob(f"{where} has a field {excerpt(min(taken))}, which a hit has of its own: rename it")
    try:
        is_json = wire.is_json(value) and bool(json.dumps(value, allow_nan=False))
    except ValueError:  # NaN or infinity
        is_json = False
    if not is_json:
        raise MalformedJob(f"{where} has a value that JSON cannot hold, or that is nested too deeply: leave it out")
    return document


def _id(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise MalformedJob(f"{where} is {kind(value)}: it takes a string that is not blank")
    return value


def _sparse(packed: Any, num_vectors: int) -> tuple[SparseVector, ...]:
    try:
        found = tuple(unpack_sparse(packed))
    except (ValueError, LookupError, TypeError) as error:
        raise MalformedJob(f"sparse holds no sparse vectors ({error!s:.80})") from error
    if len(found) != num_vectors:
        raise MalformedJob(f"sparse has {len(found):,} vectors, for {num_vectors:,} documents")
    return found


def _vectors(data: bytes, num_vectors: int, *, may_be_empty: bool) -> NDArray[np.float32]:
    width, rest = divmod(len(data), 4 * num_vectors) if num_vectors else (0, len(data))
    if rest or (num_vectors and not width and not may_be_empty):
        raise MalformedJob(f"the vectors of {num_vectors:,} documents have {len(data):,} bytes: 4 for each number")
    vectors = np.frombuffer(data, "<f4").reshape(num_vectors, width)
    with np.errstate(all="ignore"):
        is_normalised = np.linalg.norm(vectors, axis=1) <= MAX_LENGTH  # False for NaN
    if not is_normalised.all():
        number = int(np.argmin(is_normalised))
        raise MalformedJob(f"the vector of documents[{number}] is not normalised: make its length 1")
    return vectors
