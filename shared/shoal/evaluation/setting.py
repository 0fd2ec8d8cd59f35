"""A setting that is evaluated: options of a search, as words of the command line."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from shoal.errors import InvalidRequest
from shoal.excerpt import excerpt
from shoal.options import OPTION_NAMES
from shoal.search_options import SEARCH_NAMES

#: The options that an evaluation gives by itself, or that make other lists of hits than one for each query.
REFUSED = frozenset({"k", "index", "cursor", "fuse", "like", "negative", "num_negative", "vectors"})

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
        rest = _WORD.sub("", text).strip()
        if rest:
            raise InvalidRequest(f"the setting has {excerpt(rest)}: write NAME=VALUE, such as mode=hybrid alpha=0.6")
        for name, value in _WORD.findall(text):
            _put(options, name, _value(name, value.strip()))
        for name in options:
            if name in REFUSED or name not in (*OPTION_NAMES, *SEARCH_NAMES):
                raise InvalidRequest(
                    f"the setting has {excerpt(name)}: it takes options of a search with one list of hits a query"
                )
        return cls(" ".join(text.split()) or "defaults", options)

    def extended(self, words: str) -> "Setting":
        """Return the setting with further words."""
        return Setting.parse(f"{'' if self.name == 'defaults' else self.name} {words}")


def _put(options: dict[str, Any], name: str, value: Any) -> None:
    """Put a value at the place that the name says; raise InvalidRequest if there is one already."""
    *parents, last = name.split(".")
    place = options
    for parent in parents:
        place = place.setdefault(parent, {})
        if not isinstance(place, dict):
            break
    if not isinstance(place, dict) or last in place:
        raise InvalidRequest(f"the setting has {excerpt(name)} twice: leave one out")
    place[last] = value


def _value(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if text[:1] in ("{", "[", '"') or not text:
            raise InvalidRequest(f"the setting has {name}={excerpt(text)}: its value is no JSON") from None
        return text
