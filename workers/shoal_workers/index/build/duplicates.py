"""Documents with the same words as an earlier one: found when they are copied, and listed in a file of the version."""

import json
import re
from pathlib import Path

import numpy as np

from shoal_workers.index.build.copied import Copied
from shoal_workers.index.files.hash_table import HashTable, hash_of
from shoal_workers.index.files.json_lines import to_line
from shoal_workers.index.files.manifest import DOCUMENTS, DUPLICATES
from shoal_workers.index.lexical.words import normalised

_WORDS = re.compile(r"\w+")


def word_hash(text: str) -> bytes:
    """Return a hash of the words of a text: the same whatever their case, their spaces and the signs between them.

    A text without words has that of its signs.
    """
    found = _WORDS.findall(normalised(text))
    return hash_of(" ".join(found) or text.strip())


def write_duplicates(folder: Path, copied: Copied) -> int:
    """List the duplicates of a build in a file, each with the first document that has its words; return their number.

    A line has the `id` and, as `same_as`, the id of that document.
    """
    first_rows = HashTable.of(copied.word_hashes).first_rows()
    ids = np.frombuffer(copied.id_hashes, "<u8").reshape(-1, 2)
    begins = np.append(True, (ids[1:] != ids[:-1]).any(axis=1))
    rows = np.flatnonzero(begins & (first_rows != np.arange(len(first_rows))))
    offsets = copied.offsets()
    with (folder / DOCUMENTS).open("rb") as documents, (folder / DUPLICATES).open("wb") as file:

        def document_id(row: int) -> str:
            documents.seek(offsets[row])
            return str(json.loads(documents.readline())["id"])

        for row in rows.tolist():
            file.write(to_line({"id": document_id(row), "same_as": document_id(int(first_rows[row]))}))
    return len(rows)
