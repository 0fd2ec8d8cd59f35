"""The bad rows of a folder of vectors, of which a run that goes on keeps those of finished parts."""

import json
import os
from pathlib import Path

from shoal.errors import FileError
from shoal.records.bad_rows import BadRows
from shoal.records.document import BadRow

BAD_ROWS = "bad-rows.jsonl"


class KeptBadRows(BadRows):
    """The bad rows in the file of a folder. The first `num_kept` lines stay, and the others are cut off.

    Raises FileError if the file has fewer.
    """

    def __init__(self, folder: Path, num_kept: int):
        super().__init__()
        path = folder / BAD_ROWS
        path.touch()
        with path.open("r+b") as file:
            for _ in range(num_kept):
                self.add(_bad_row(path, file.readline()))
            file.truncate(file.tell())
        self._file = path.open("a", encoding="utf-8")

    def sync(self) -> None:
        """Wait until all rows are on disk."""
        assert self._file
        self._file.flush()
        os.fsync(self._file.fileno())


def _bad_row(path: Path, line: bytes) -> BadRow:
    try:
        values = json.loads(line)
        return BadRow(int(values["row"]), str(values["reason"]))
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} has fewer rows than were left out: write to another folder") from error
