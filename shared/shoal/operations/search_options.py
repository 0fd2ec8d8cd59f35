"""The options of a search: the documents that it may find, their ranking, and the values that it returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from shoal.contract.checks import (
    MAX_NAME_CHARS,
    MAX_NUMBER,
    MAX_VALUE_CHARS,
    check_names,
    check_number,
    check_range,
    check_string,
    check_strings,
    check_type,
)
from shoal.contract.excerpt import excerpt
from shoal.contract.options import MAX_DIMENSIONS
from shoal.errors import InvalidRequest
from shoal.operations.search_fields import parse_boosts, parse_facets, parse_sort
from shoal.operations.search_filter import parse_filter

Mode = Literal["dense", "lexical", "hybrid"]

#: All modes.
MODES: tuple[str, ...] = get_args(Mode)

#: Largest numbers of vectors and of ids to search by in one job. For each of them, a worker reads the whole index.
MAX_LISTS = 32

#: Largest number of negative texts, which hits should not resemble.
MAX_NEGATIVE = 32

#: Largest number of hits in a group.
MAX_GROUP_SIZE = 100

#: Largest number of fields that one option may name.
MAX_FIELDS = 100

#: Largest number of a list's hits that a reranker scores, or in which facets are counted.
MAX_TOP_N = 1_000

#: Smallest, largest and default length of a snippet, in characters.
MIN_SNIPPET_CHARS, MAX_SNIPPET_CHARS, SNIPPET_CHARS = 20, 10_000, 240


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options that say how to search an index. An option that is None is not used.

    Without a `mode`, the search is dense, or lexical in an index of words alone.
    The reply has a list of hits for each text, then for each of `vectors`, then for each document whose id is in
    `like`; with `fuse`, it has one list for all of them together. The last `num_negative` texts are negative: hits
    should not resemble them. An empty `cursor` asks for the first page. Raises InvalidRequest for a wrong value.
    """

    mode: str | None = None
    alpha: float | None = None
    filter: dict[str, Any] | None = None
    sort: list[dict[str, str]] | None = None
    boost: list[dict[str, Any]] | None = None
    group_by: str | None = None
    group_size: int = 1
    facets: list[str] | None = None
    facets_top_n: int | None = None
    fields: list[str] | None = None
    snippet: dict[str, Any] | None = None
    cursor: str | None = None
    min_score: float | None = None
    explain: bool = False
    like: list[str] | None = None
    vectors: list[list[float]] | None = None
    num_negative: int = 0
    fuse: bool = False
    rerank: dict[str, Any] | None = None
    diversity: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in (None, *MODES):
            raise InvalidRequest(f"mode is {excerpt(self.mode)}: it takes one of {', '.join(MODES)}")
        for name in ("explain", "fuse"):
            check_type(name, getattr(self, name), bool, "true or false")
        check_range("group_size", self.group_size, 1, MAX_GROUP_SIZE)
        check_range("num_negative", self.num_negative, 0, MAX_NEGATIVE)
        for name, check in _CHECKS.items():
            if (value := getattr(self, name)) is not None:
                check(name, value)
        if self.alpha is not None and self.mode != "hybrid":
            raise InvalidRequest(
                f"alpha is {self.alpha:g}, and mode is {self.mode or 'not set'}: set mode to hybrid, or leave alpha out"
            )
        if self.facets_top_n is not None and self.facets is None:
            raise InvalidRequest("facets_top_n goes with facets: name the fields whose values are counted")
        for name in ("cursor", "sort"):
            if getattr(self, name) is not None and (self.rerank is not None or self.diversity is not None):
                reason = "which have one page" if name == "cursor" else "which give hits another order"
                raise InvalidRequest(f"{name} does not go with rerank and diversity, {reason}: leave it out")

    @property
    def num_given(self) -> int:
        """The number of vectors and documents to search by, in addition to texts."""
        return len(self.vectors or ()) + len(self.like or ())

    @property
    def num_passes(self) -> int:
        """The number of passes over all documents for one list of hits: for scores, order, facets and groups."""
        has_own_facets = self.mode == "lexical" or self.like is not None or self.facets_top_n is not None
        passes = [self.mode == "hybrid", self.sort is not None, len(self.facets or ()) if has_own_facets else 0]
        return 1 + sum(passes) + (3 if self.group_size > 1 and self.group_by != "" else 0)  # groups take three passes

    @classmethod
    def from_map(cls, values: Mapping[str, Any]) -> "SearchOptions":
        """Return options with values from a map. Options that the map lacks keep their defaults."""
        given = {name: values[name] for name in SEARCH_NAMES if name in values}
        return cls(**given) if given else PLAIN

    def to_map(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by their names."""
        if self is PLAIN:
            return {}
        return {name: value for name, default in SEARCH_DEFAULTS.items() if (value := getattr(self, name)) != default}


def _check_snippet(name: str, value: Any) -> None:
    check_names(name, value, ("max_chars",))
    check_range(f"{name}.max_chars", value.get("max_chars", SNIPPET_CHARS), MIN_SNIPPET_CHARS, MAX_SNIPPET_CHARS)


def _check_rerank(name: str, value: Any) -> None:
    check_names(name, value, ("top_n", "query"), ("top_n",))
    check_range(f"{name}.top_n", value["top_n"], 1, MAX_TOP_N)
    if "query" in value:
        check_type(f"{name}.query", value["query"], str, "a string")
        if not value["query"].strip():
            raise InvalidRequest(f"{name}.query is empty: it takes the text that hits are scored for")


def _check_vectors(name: str, value: Any) -> None:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_LISTS:
        raise InvalidRequest(f"{name} is {excerpt(value)}: it takes a list of 1 to {MAX_LISTS:,} vectors")
    for number, vector in enumerate(value):
        place = f"{name}[{number}]"
        if not isinstance(vector, list) or not 0 < len(vector) <= MAX_DIMENSIONS:
            raise InvalidRequest(f"{place} is {excerpt(vector)}: it takes a list of numbers")
        for n, item in enumerate(vector):
            if type(item) not in (float, int) or not -MAX_NUMBER <= item <= MAX_NUMBER:
                check_number(f"{place}[{n}]", item)
        if not any(vector):
            raise InvalidRequest(f"{place} has only zeros, which point nowhere: send the vector of a text")


#: A check for each option that may be None.
_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "alpha": lambda name, value: check_number(name, value, 0, 1),
    "filter": lambda _, value: parse_filter(value),
    "sort": lambda _, value: parse_sort(value),
    "boost": lambda _, value: parse_boosts(value),
    "group_by": lambda name, value: check_string(name, value, "the name of a field"),
    "facets": lambda _, value: parse_facets(value),
    "facets_top_n": lambda name, value: check_range(name, value, 1, MAX_TOP_N),
    "fields": lambda name, value: check_strings(name, value, MAX_FIELDS, MAX_NAME_CHARS),
    "snippet": _check_snippet,
    "cursor": lambda name, value: check_string(name, value, "a cursor of an answer, or an empty string", 4_096),
    "min_score": check_number,
    "like": lambda name, value: check_strings(name, value, MAX_LISTS, MAX_VALUE_CHARS),
    "vectors": _check_vectors,
    "rerank": _check_rerank,
    "diversity": lambda name, value: check_number(name, value, 0, 1),
}

#: The default of each option by its name, which is the same on the wire, in HTTP bodies and in Python.
SEARCH_DEFAULTS: dict[str, Any] = {option.name: option.default for option in fields(SearchOptions)}

#: The names of all options of a search.
SEARCH_NAMES = tuple(SEARCH_DEFAULTS)

#: Searches without options. A worker answers them for many jobs together.
PLAIN, PLAIN_DENSE = SearchOptions(), SearchOptions(mode="dense")
