"""Map: the documents of an index in two dimensions."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from shoal.contract.index_job import IndexJob
from shoal.contract.options import Options
from shoal.errors import InvalidRequest
from shoal.operations.map_options import WHOLE_MAP, MapOptions

#: The points of a map count as this many texts in a lane: a worker reads them in the time of so many short
#: texts.
TEXTS_PER_MAP = 16


@dataclass(frozen=True, slots=True)
class Map(IndexJob):
    """The points of an index's map, or documents at some of them. It has no texts."""

    map: MapOptions = WHOLE_MAP

    op: ClassVar[str] = "map"
    option_names: ClassVar[tuple[str, ...]] = tuple(field.name for field in fields(MapOptions))

    @property
    def _takes_texts(self) -> bool:
        return False

    def _check(self) -> None:
        IndexJob._check(self)
        if self.texts:
            raise InvalidRequest(f"texts has {len(self.texts):,}: a map takes none, send an empty list")
        if self.options != Options():
            raise InvalidRequest("options of texts do not go with a map, which has none: leave them out")

    def _fields(self) -> dict[str, Any]:
        return IndexJob._fields(self) | self.map.to_map()

    @classmethod
    def _fields_of(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: values[name] for name in cls.own_names if name in values}
        return given | {"map": MapOptions.from_map(values)}

    @property
    def is_one_question(self) -> bool:
        """True: there is nothing to split."""
        return True

    @property
    def num_lane_texts(self) -> int:
        """The number of texts that the job counts as in its lane."""
        return TEXTS_PER_MAP if self.map.map_rows is None else 1
