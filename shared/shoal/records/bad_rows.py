"""Rows that were left out, with the reasons."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from shoal.long_task import MAX_SHOWN
from shoal.records.document import BadRow, Document


class BadRows:
    """The bad rows of a source: their number `num`, the messages of the `first` ones, and a file that has all of them.

    The file, if `path` names one, has one JSON object `{"row", "reason"}` a line. It is made anew, and closed by
    `close` or at the end of a `with`.
    """

    def __init__(self, path: Path | None = None):
        self.num = 0
        self.first: tuple[str, ...] = ()
        self._file = path.open("w", encoding="utf-8") if path else None

    def add(self, row: BadRow) -> None:
        """Keep one bad row."""
        self.num += 1
        if len(self.first) < MAX_SHOWN:
            self.first += (row.reason,)
        if self._file:
            self._file.write(json.dumps({"row": row.number, "reason": row.reason}, ensure_ascii=False) + "\n")

    def skip(self, rows: Iterable[Document | BadRow]) -> Iterator[Document]:
        """Yield the documents, and keep the bad rows."""
        for row in rows:
            if isinstance(row, Document):
                yield row
            else:
                self.add(row)

    def close(self) -> None:
        """Write what is not written yet, and close the file."""
        if self._file:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
