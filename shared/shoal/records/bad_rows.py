"""Rows that were left out, with the reasons."""

import json
import os
from pathlib import Path
from typing import Self

from shoal.errors import BadDocument, FileError
from shoal.long_task import MAX_SHOWN
from shoal.records.document import BadRow

#: Most bad rows of a source. A packed file may have a thousand times as many as it has bytes, and each takes a line.
MAX_BAD_ROWS = 10_000_000


class BadRows:
    """The bad rows of a source: their number `num`, the messages of the `first` ones, and a file that has all of them.

    The file has one JSON object `{"row", "reason"}` a line, and is closed at the end of a `with`. The first `num_kept`
    lines, which an earlier run wrote, stay; the others are cut off. Raises FileError if it has fewer lines.
    """

    def __init__(self, path: Path, num_kept: int = 0, most: int = MAX_BAD_ROWS):
        self.num = 0
        self._most = most
        self.first: tuple[str, ...] = ()
        path.touch()
        with path.open("r+b") as file:
            try:
                for _ in range(num_kept):
                    values = json.loads(file.readline())
                    self._count(BadRow(int(values["row"]), str(values["reason"])))
            except (ValueError, KeyError, TypeError) as error:
                raise FileError(f"{path} has fewer rows than were left out: write to another folder") from error
            file.truncate(file.tell())
        self._file = path.open("a", encoding="utf-8")

    def add(self, row: BadRow) -> None:
        """Keep one bad row. Raises BadDocument if there are over `most`."""
        if self.num == self._most:
            raise BadDocument(
                f"over {self._most:,} rows cannot be used, at which reading ends; the first: {self.first[0]}"
            )
        self._count(row)
        self._file.write(json.dumps({"row": row.number, "reason": row.reason}, ensure_ascii=False) + "\n")

    def sync(self) -> None:
        """Wait until all rows are on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def _count(self, row: BadRow) -> None:
        self.num += 1
        if len(self.first) < MAX_SHOWN:
            self.first += (row.reason,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
