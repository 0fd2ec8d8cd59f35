"""The options of a map: what is told of the documents of an index in two dimensions."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from shoal.contract.checks import check_range, check_string
from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest

#: Most points of a map: a page draws so many smoothly.
MAX_POINTS = 20_000

#: Most documents of points that one job tells: those around the pointer.
MAX_ROWS = 12

#: Largest row of an index.
MAX_ROW = 2**32 - 1


@dataclass(frozen=True, slots=True)
class MapOptions:
    """Options of a map: its points, or with `map_rows` the documents at some of them.

    There are at most `max_points`, and with a `field` each has the code of its value there. Rows are those that the
    map of the version `index_version` has.

    Raises InvalidRequest for a value that an option does not take.
    """

    max_points: int = MAX_POINTS
    field: str | None = None
    map_rows: list[int] | None = None
    index_version: str | None = None

    def __post_init__(self) -> None:
        check_range("max_points", self.max_points, 1, MAX_POINTS)
        for name in ("field", "index_version"):
            if (value := getattr(self, name)) is not None:
                check_string(name, value, "a name")
        if (self.map_rows is None) != (self.index_version is None):
            raise InvalidRequest("map_rows and index_version go together: name the version whose map has these rows")
        if self.map_rows is not None:
            self._check_rows(self.map_rows)

    def _check_rows(self, rows: Any) -> None:
        if not isinstance(rows, list) or not 0 < len(rows) <= MAX_ROWS:
            raise InvalidRequest(f"map_rows is {excerpt(rows)}: it takes a list of 1 to {MAX_ROWS} rows of a map")
        for number, row in enumerate(rows):
            check_range(f"map_rows[{number}]", row, 0, MAX_ROW)

    @classmethod
    def from_map(cls, values: Mapping[str, Any]) -> "MapOptions":
        """Return options with the map's values; options that it lacks keep their defaults, other fields are ignored."""
        return cls(**{name: values[name] for name in MAP_DEFAULTS if name in values})

    def to_map(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by name."""
        return {name: value for name, default in MAP_DEFAULTS.items() if (value := getattr(self, name)) != default}


#: The default of each option by its name, which is the same on the wire and in queries of HTTP.
MAP_DEFAULTS: dict[str, Any] = {option.name: option.default for option in fields(MapOptions)}

#: A map without a field.
WHOLE_MAP = MapOptions()
