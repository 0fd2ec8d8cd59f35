"""The options of a search, as fields of a body."""

from typing import Annotated, Any, TypeVar

from pydantic import Field

from shoal.operations.search_options import (
    MAX_GROUP_SIZE,
    MAX_TOP_N,
    SEARCH_DEFAULTS,
    SEARCH_NAMES,
    Mode,
    SearchOptions,
)
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import SEARCH, Texts

_Item = TypeVar("_Item")

#: A list whose check stops at the first error: the errors of all items of a large list would fill the memory.
_List = Annotated[list[_Item], Field(fail_fast=True), SEARCH]

_Map = Annotated[dict[str, Any], SEARCH]
_String = Annotated[str, SEARCH]
_Number = Annotated[float, SEARCH]


def _option(name: str, description: str) -> Any:
    """Return the field of an option, with the default that it has in `shoal.SearchOptions`."""
    return Field(SEARCH_DEFAULTS[name], description=description)


class SearchFields(Body):
    """Options of how an index is searched."""

    mode: Mode = _option("mode", "Rank by meaning, by words, or by both")
    alpha: Annotated[float, Field(ge=0, le=1)] | None = _option("alpha", "Share of the meaning in a hybrid search")
    filter: _Map | None = _option("filter", "Condition on fields that each hit fulfils")
    sort: _List[_Map] | None = _option("sort", "Fields by which hits are ordered instead of by score")
    boost: _List[_Map] | None = _option("boost", "Fields whose values raise or lower the score")
    group_by: _String | None = _option("group_by", "Field whose equal values make a group; empty: no groups")
    group_size: Annotated[int, Field(ge=1, le=MAX_GROUP_SIZE)] = _option("group_size", "Most hits of a group")
    facets: _List[_String] | None = _option("facets", "Fields whose values are counted")
    facets_top_n: Annotated[int, Field(ge=1, le=MAX_TOP_N)] | None = _option(
        "facets_top_n", "Count the values of so many best documents; null: of all that the filter leaves"
    )
    fields: _List[_String] | None = _option("fields", "Fields that hits have beside id and score; null: all")
    snippet: _Map | None = _option("snippet", "Show the passage of each hit that fits best")
    cursor: _String | None = _option("cursor", "Page to answer: empty for the first one, then as answered")
    min_score: _Number | None = _option("min_score", "Least score of a hit")
    explain: bool = _option("explain", "Tell for each hit what its score is made of")
    like: _List[_String] | None = _option("like", "Ids of documents that hits are to be like")
    vectors: _List[_List[_Number]] | None = _option("vectors", "Vectors to search for, as the model makes them")
    negative: Texts | None = Field(None, description="Texts that hits are not to be like")
    fuse: bool = _option("fuse", "Answer one list of hits for all that is asked together")
    rerank: _Map | None = _option("rerank", "Let the reranker order the best hits")
    diversity: Annotated[float, Field(ge=0, le=1)] | None = _option("diversity", "How much hits differ from each other")

    def search_options(self) -> SearchOptions:
        """Return the options; raises InvalidRequest for a value that one does not take."""
        given = {name: getattr(self, name) for name in self.model_fields_set.intersection(SEARCH_NAMES)}
        if self.negative is not None:
            given["num_negative"] = 1 if isinstance(self.negative, str) else len(self.negative)
        return SearchOptions.from_map(given)
