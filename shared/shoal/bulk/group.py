"""Groups of consecutive rows of a source: the texts of a group are one job."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shoal.contract.options import Options
from shoal.errors import ShoalError
from shoal.operations.embed import TEXTS_PER_TOKENS_JOB
from shoal.records.document import BadRow, Document

#: Most rows of a group, and characters at which it takes no more of them.
MAX_GROUP_ROWS, MAX_GROUP_CHARS = 64, 2**18

#: A row of the source.
Row = Document | BadRow


@dataclass(slots=True)
class Group:
    """Consecutive rows of the source, whose texts make one job.

    Once it is answered, `errors` has the error of each document that could not be embedded, by its number among the
    documents, and `vectors` those of the others, float32 `[documents, dimension]`; it stays None without any.
    """

    rows: list[Row]
    vectors: NDArray[np.float32] | None = None
    errors: dict[int, ShoalError] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """The texts of the documents."""
        return [row.text for row in self.rows if isinstance(row, Document)]

    @property
    def num_chars(self) -> int:
        """Characters that its rows hold, without their fields."""
        return sum(map(_num_chars, self.rows))


def groups(rows: Iterator[Row], part_rows: int, options: Options) -> Iterator[Group]:
    """Cut rows into groups, none of which is of two parts; the first row is the first of a part."""
    max_rows = MAX_GROUP_ROWS if options.is_cacheable else TEXTS_PER_TOKENS_JOB
    group: list[Row] = []
    num_chars, left = 0, part_rows
    for row in rows:
        group.append(row)
        num_chars += _num_chars(row)
        left -= 1
        if len(group) == max_rows or num_chars >= MAX_GROUP_CHARS or not left:
            yield Group(group)
            group, num_chars, left = [], 0, left or part_rows
    if group:
        yield Group(group)


def _num_chars(row: Row) -> int:
    return len(row.text) + len(row.id) if isinstance(row, Document) else len(row.reason)
