"""An evaluation: the values of the measures for each setting, its times, and its difference to the first setting."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from shoal.evaluation.collection import Collection
from shoal.evaluation.measure import Measure
from shoal.evaluation.resampling import Difference, Interval, Values, adjusted, difference, interval
from shoal.evaluation.run import Run, Times


@dataclass(frozen=True)
class Evaluation:
    """The runs of settings over one collection, with the times of each, if they were taken.

    The first of the `measures` is the one by which settings are compared, and the first setting is the one that the
    others are compared with.
    """

    collection: Collection
    measures: Sequence[Measure]
    runs: Sequence[Run]
    times: Sequence[Times | None]

    @property
    def names(self) -> list[str]:
        """The names of the settings."""
        return [run.setting.name for run in self.runs]

    @cached_property
    def values(self) -> list[Values]:
        """The values of the first measure for each setting."""
        return [run.values(self.measures[0], self.collection) for run in self.runs]

    @cached_property
    def intervals(self) -> list[list[Interval]]:
        """The mean of each measure with its interval, for each setting."""
        return [[interval(run.values(measure, self.collection)) for measure in self.measures] for run in self.runs]

    @cached_property
    def differences(self) -> list[Difference]:
        """The difference of each setting but the first to the first one, by the first measure."""
        return [difference(values, self.values[0]) for values in self.values[1:]]

    @property
    def adjusted_ps(self) -> list[float]:
        """The probabilities of `differences` for all comparisons together."""
        return adjusted([each.p for each in self.differences])

    def to_map(self) -> dict[str, Any]:
        """Return all figures as JSON can hold them: `settings`, each with its values by query, and `differences`."""
        settings = [
            {
                "setting": run.setting.name,
                "options": dict(run.setting.options),
                "measures": {str(m): i._asdict() for m, i in zip(self.measures, of_run, strict=True)},
                "times": asdict(found) if found else None,
                "values": {
                    str(m): dict(zip(run.rankings, run.values(m, self.collection).tolist(), strict=True))
                    for m in self.measures
                },
            }
            for run, of_run, found in zip(self.runs, self.intervals, self.times, strict=True)
        ]
        differences = [
            asdict(each) | {"setting": name, "interval": each.interval._asdict(), "p_of_all": p}
            for name, each, p in zip(self.names[1:], self.differences, self.adjusted_ps, strict=True)
        ]
        return {
            "queries": len(self.collection.queries),
            "left_out": self.collection.num_left_out,
            "settings": settings,
            "compared_with": self.names[0],
            "differences": differences,
        }
