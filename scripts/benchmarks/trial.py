"""Trials, which run alternately, and the figures that they measure."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import wrk

#: Longest warm-up before the runs that count.
WARM_UP_S = 2

#: The figures of one run by name. Figures named `group: column` stand in a table for the group.
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Trial:
    """A measurement that can be repeated: `run` takes the seconds and the number of the run.

    A run that returns no figures does not count.
    """

    case: str
    target: str
    run: Callable[[int, int], Figures]


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of all runs of a trial: for each figure a value from each run."""

    scenario: str
    case: str
    target: str
    figures: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        """Return the median of a figure over the runs."""
        return statistics.median(self.figures[name])


def interleave(
    scenario: str, trials: Sequence[Trial], runs: int, seconds: int, say: Callable[[str], object]
) -> list[Row]:
    """Run all trials once to warm up, then all of them, one after the other, `runs` times; return a row for each trial.

    `say` gets a line after each run.
    """
    found: list[list[Figures]] = [[] for _ in trials]
    for number in range(runs + 1):
        for trial, of_trial in zip(trials, found, strict=True):
            figures = trial.run(seconds if number else min(seconds, WARM_UP_S), number)
            if number and figures:
                of_trial.append(figures)
                name, value = next(iter(figures.items()))
                say(f"{scenario}, run {number}: {trial.case}, {trial.target}: {name} {shown(value)}")
    measured = [(trial, runs_of) for trial, runs_of in zip(trials, found, strict=True) if runs_of]
    return [
        Row(scenario, trial.case, trial.target, {name: [run[name] for run in runs_of] for name in runs_of[0]})
        for trial, runs_of in measured
    ]


def figures_of(measured: wrk.Measured, texts_per_request: int) -> Figures:
    """Return the rate and latencies of a run as figures."""
    return {
        "requests/s": measured.requests_per_s,
        "texts/s": measured.requests_per_s * texts_per_request,
        "p50 ms": measured.p50_ms,
        "p90 ms": measured.p90_ms,
        "p99 ms": measured.p99_ms,
    }


def shown(value: float) -> str:
    """Return a number as text: no decimals from 100 on, two from 1 on, three below."""
    digits = 0 if abs(value) >= 100 or value == int(value) else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"
