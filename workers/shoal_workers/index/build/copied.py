"""The documents that a build has copied from the source: their sizes, numbers and hashes, in memory."""

from array import array

import numpy as np
from numpy.typing import NDArray

from shoal.records.document import Document
from shoal_workers.index.files.hash_table import HASH_BYTES, hash_of


class Copied:
    """Rows that were copied: the sizes of their lines in the file, their numbers in the source, and hashes.

    The rows of a document follow each other. They have its number, the hash of its id, and that of its words.
    """

    def __init__(self) -> None:
        self.sizes = array("q")
        self.numbers = array("q")
        self.hashes = bytearray()
        self.id_hashes = bytearray()
        self.word_hashes = bytearray()

    def add(self, row: Document, line: bytes, word_hash: bytes) -> None:
        """Note a document, or a chunk of one, that was copied as a line; `word_hash` is that of the whole document."""
        self.sizes.append(len(line))
        self.numbers.append(row.number)
        self.hashes += hash_of(row.text)
        self.id_hashes += hash_of(row.id)
        self.word_hashes += word_hash

    def keep(self, is_kept: NDArray[np.bool_]) -> None:
        """Forget all but these rows."""
        self.sizes = array("q", np.array(self.sizes)[is_kept].tobytes())
        self.numbers = array("q", np.array(self.numbers)[is_kept].tobytes())
        self.hashes, self.id_hashes, self.word_hashes = (
            bytearray(np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES)[is_kept].tobytes())
            for hashes in (self.hashes, self.id_hashes, self.word_hashes)
        )

    def offsets(self) -> NDArray[np.int64]:
        """Return where each line begins, and the end of the last; int64 `[count + 1]`."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.sizes, dtype=np.int64)])
