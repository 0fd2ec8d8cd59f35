"""A setting that is evaluated: options of a search, as words of the command line."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from shoal.contract.excerpt import excerpt
from shoal.contract.options import OPTION_NAMES
from shoal.errors import InvalidRequest
from shoal.operations.search_options import SEARCH_NAMES

#: The options of a search that leave one list of hits for each query.
_ALLOWED = {*OPTION_NAMES, *SEARCH_NAMES} - {"cursor", "fuse", "like", "num_negative", "vectors"}

_WORD = re.compile(r"([\w.]+)=(.*?)(?=\s+[\w.]+=|\s*$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Setting:
    """The options of a search, with the name under which they stand in tables."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the setting in words such as `mode=hybrid alpha=0.6 rerank.top_n=50`; none are the service's defaults.

        A value is JSON, or else a string; a dot in a name leads into a map. Raises InvalidRequest.
        """
        options: dict[str, Any] = {}
        if rest := _WORD.sub("", text).strip():
            raise InvalidRequest(f"the setting has {excerpt(rest)}: write NAME=VALUE, such as mode=hybrid alpha=0.6")
        for name, value in _WORD.findall(text):
            *parents, last = name.split(".")
            place: Any = options
            for parent in parents:
                place = place.setdefault(parent, {}) if isinstance(place, dict) else place
            if not isinstance(place, dict) or last in place:
                raise InvalidRequest(f"the setting has {excerpt(name)} twice: leave one out")
            place[last] = _value(name, value.strip())
        if unknown := [name for name in options if name not in _ALLOWED]:
            raise InvalidRequest(
                f"the setting has {excerpt(unknown[0])}: it takes options of a search with one list of hits a query"
            )
        return cls(" ".join(text.split()) or "defaults", options)

    def num_hits(self, most: int) -> int:
        """Return how many hits to ask for: at most as many as a reranker reads, as a search refuses more."""
        rerank = self.options.get("rerank")
        top_n = rerank.get("top_n") if isinstance(rerank, dict) else None
        return min(most, top_n) if isinstance(top_n, int) and top_n > 0 else most


def _value(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if text[:1] in ("{", "[", '"') or not text:
            raise InvalidRequest(f"the setting has {name}={excerpt(text)}: its value is no JSON") from None
        return text
