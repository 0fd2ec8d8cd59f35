"""The request for a bulk embedding."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.bulk.part_file import SUFFIXES
from shoal.contract.excerpt import excerpt
from shoal.contract.options import OPTION_NAMES, Options
from shoal.errors import InvalidRequest

#: Rows of a part, if no other number is asked for: a run that stops repeats less than one, under a minute of most work.
PART_ROWS = 8_192


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """The arguments of a bulk embedding, all plain values.

    `source` is a file of records, by path or URL, and `out` the folder to write. A part has the vectors of `part_rows`
    rows of the source, without those of bad rows; without a number it has as many as the folder was begun with, and in
    a new one `PART_ROWS`. `options` are fields of `shoal.Options`. Raises InvalidRequest for an argument that cannot
    work.
    """

    source: str
    out: str
    text_column: str | None = None
    id_column: str | None = None
    format: str = "safetensors"
    part_rows: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("source", "out"):
            if not isinstance(value := getattr(self, name), str) or not value:
                raise InvalidRequest(f"{name} is {excerpt(value)}: it takes the name of a file or folder")
        for name in ("text_column", "id_column"):
            if not isinstance(value := getattr(self, name), str | None):
                raise InvalidRequest(f"{name} is {excerpt(value)}: it takes the name of a column")
        if self.format not in SUFFIXES:
            raise InvalidRequest(f"format is {excerpt(self.format)}: it takes one of {', '.join(SUFFIXES)}")
        rows = PART_ROWS if self.part_rows is None else self.part_rows
        if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows < 2**31:
            raise InvalidRequest(f"part_rows is {excerpt(rows)}: it takes a whole number from 1")
        if not isinstance(self.options, Mapping):
            raise InvalidRequest(f"options is {excerpt(self.options)}: it takes a map")
        if unknown := sorted(self.options.keys() - set(OPTION_NAMES)):
            raise InvalidRequest(f"there is no option {excerpt(unknown[0])}: there are {', '.join(OPTION_NAMES)}")
        if self.job_options().output != "vector":
            raise InvalidRequest(f"output is {excerpt(self.options['output'])}: a file of vectors takes 'vector'")

    def job_options(self) -> Options:
        """Return the options of the jobs."""
        return Options(**self.options)
