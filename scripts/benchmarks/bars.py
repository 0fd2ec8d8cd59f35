"""The numbers to reach, and whether they were: a ratio of two figures of the same run where that is possible."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.trial import Row, shown

#: The case, the target and the name of a figure.
Figure = Sequence[str]


@dataclass(frozen=True)
class Bar:
    """A number to reach: at least `least`, or at most `most`; `bars.toml` says what the other fields mean."""

    scenario: str
    what: str
    figure: Figure
    over: Figure = ()
    minus: Figure = ()
    typical: bool = False
    every_run: bool = False
    least: float | None = None
    most: float | None = None
    unit: str = ""

    @property
    def needed(self) -> str:
        """The bar in words."""
        sign, value = ("≥", self.least) if self.least is not None else ("≤", self.most)
        return f"{sign} {round(value or 0, 2):,g}{self.unit}"

    def is_met_by(self, value: float) -> bool:
        """Return True if the value reaches the bar."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def judge(self, rows: Sequence[Row]) -> tuple[str, str]:
        """Return the value found, and `pass`, `miss` or `not measured`."""
        try:
            value = self._find(rows, self.figure)
            if self.minus:
                value -= self._find(rows, self.minus)
            if self.over:
                value /= self._find(rows, self.over, median if self.typical else max)
        except KeyError:
            return "", "not measured"
        value *= 100 if self.over and self.unit == " %" else 1
        return f"{shown(value)}{self.unit}", "pass" if self.is_met_by(value) else "miss"

    def _find(self, rows: Sequence[Row], place: Figure, pick: Callable[[list[float]], float] = max) -> float:
        case, target, name = place
        of_target = [row for row in rows if (row.scenario, row.target) == (self.scenario, target)]
        named = [row for row in of_target if row.case == case or (case[-1] == "*" and row.case.startswith(case[:-1]))]
        if found := [self._of_runs(row.figures[name]) for row in named if name in row.figures]:
            return pick(found)
        raise KeyError(place)

    def _of_runs(self, values: Sequence[float]) -> float:
        worst = min if self.least is not None else max
        return worst(values) if self.every_run else median(values)


BARS = [
    Bar(scenario, **bar)
    for scenario, bars in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
    for bar in bars
]


def table(rows: Sequence[Row]) -> str:
    """Return the bars of the scenarios that were run as Markdown: needed, found, pass or miss."""
    scenarios = {row.scenario for row in rows}
    lines = [
        f"| {bar.what} | {bar.needed} | {' | '.join(bar.judge(rows))} |" for bar in BARS if bar.scenario in scenarios
    ]
    return "\n".join(["| what | needed | found | |", "|---|---|---|---|", *lines]) if lines else ""
