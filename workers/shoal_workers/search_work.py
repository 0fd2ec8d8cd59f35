"""Search and map: the searcher finds the answer in an index; the reranker may score what it finds."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.operations import Map, Search
from shoal.options import Options
from shoal_workers.encoding.reranker import sigmoid
from shoal_workers.index.ranked_search import SearchAnswer
from shoal_workers.index.second_stage import PAIR_OPTIONS, SecondStage
from shoal_workers.work import Work


@dataclass(slots=True, eq=False)
class SearchWork(Work):
    """The work of a job for an index.

    The pairs of the `second_stage`, which begins once the hits are found, have the numbers after the texts.
    """

    job: Search | Map
    found: SearchAnswer | None = None
    index_version: str = ""
    second_stage: SecondStage | None = None

    @property
    def uses_reranker(self) -> bool:
        """True in the second stage."""
        return self.second_stage is not None

    @property
    def options(self) -> Options:
        """The options with which queries or pairs are read next: those of a search are for its queries alone."""
        return PAIR_OPTIONS if self.second_stage else self.job.options

    def begin_second_stage(self, stage: SecondStage) -> None:
        """Have the pairs of the stage scored."""
        self.second_stage = stage
        num_texts = len(self.job.texts)
        self.untokenized.extend(range(num_texts, num_texts + len(stage.pairs)))

    def scores_of_pairs(self) -> NDArray[np.float32]:
        """Return the scores of the second stage's pairs, each between 0 and 1, once all have one."""
        vectors = (text.vectors for n, text in sorted(self.tokenized.items()) if n >= len(self.job.texts))
        return sigmoid(np.array([scored[0, 0] for scored in vectors if scored is not None], np.float32))

    def num_chars(self, number: int) -> int:
        """Return how many characters are tokenized for the query of that number, or for both parts of the pair."""
        if self.second_stage:
            return sum(map(len, self.second_stage.pairs[number - len(self.job.texts)]))
        return len(self.job.texts[number])

    def model_input(self, number: int) -> str | tuple[str, str]:
        """Return the query of that number after the prompt, or the pair."""
        if self.second_stage:
            return self.second_stage.pairs[number - len(self.job.texts)]
        return self.prompt + self.job.texts[number]

    def _names_of(self, numbers: Iterable[int]) -> str:
        return "a hit" if self.second_stage else ", ".join(map(self.job.name_of, numbers))

    def _result(self) -> dict[str, Any]:
        assert self.found is not None
        names = ("hits", "cursors", "totals", "facets", "map_places", "map", "approximate")
        return {name: getattr(self.found, name) for name in names} | {"index_version": self.index_version}
