"""An evaluation: the values of the measures for each setting, its times, and its difference to the first setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from shoal.evaluation.collection import Collection
from shoal.evaluation.measure import measures
from shoal.evaluation.run import Rankings, Times
from shoal.evaluation.setting import Setting
from shoal.evaluation.significance import Difference, Interval, differences, interval


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a setting: the mean and the values by query of each measure, and the times of a search."""

    setting: str
    options: Mapping[str, Any]
    measures: Mapping[str, Interval]
    times: Times | None
    values: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The figures of settings over one collection, and the differences of all but the first to the first by `measure`.

    As a map, it is what `shoal eval --json` writes.
    """

    queries: int
    left_out: int
    settings: Sequence[Figures]
    compared_with: str
    measure: str
    differences: Sequence[Difference]

    @classmethod
    def of(
        cls,
        collection: Collection,
        settings: Sequence[Setting],
        rankings: Sequence[Rankings],
        times: Sequence[Times | None],
        k: int = 10,
        depth: int = 100,
    ) -> Self:
        """Compute the figures of the settings, of which each has its rankings and maybe its times."""
        judged, found = collection.judgements, []
        for setting, of_setting, its_times in zip(settings, rankings, times, strict=True):
            gains = {q: [judged[q].get(document, 0) for document in ranking] for q, ranking in of_setting.items()}
            values = {
                name: {q: float(measure(gains[q], [*judged[q].values()])) for q in gains}
                for name, measure in measures(k, depth).items()
            }
            means = {name: interval(np.array([*of_queries.values()])) for name, of_queries in values.items()}
            found.append(Figures(setting.name, setting.options, means, its_times, values))
        first, *_ = measures(k, depth)
        names = [setting.name for setting in settings]
        compared = differences(names, [np.array([*each.values[first].values()]) for each in found])
        return cls(len(collection.queries), collection.num_left_out, found, names[0], first, compared)
