"""Trials, which run alternately, and the figures that they measure."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from shoal.bench import wrk

#: Longest warm-up before the runs that count.
WARM_UP_S = 2

#: Number of requests by which each run begins later in the texts, so that no run repeats the one before.
STRIDE = 4_001

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
    return [_row(scenario, trial, of_trial) for trial, of_trial in zip(trials, found, strict=True) if of_trial]


def load_trial(case: str, target: str, load: wrk.Load, texts_per_request: int = 1) -> Trial:
    """Return a trial that sends a load and measures its rate and its latencies."""
    return Trial(case, target, partial(_run_load, load, texts_per_request))


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


def _run_load(load: wrk.Load, texts_per_request: int, seconds: int, number: int) -> Figures:
    return figures_of(wrk.run(load, seconds, number * STRIDE), texts_per_request)


def _row(scenario: str, trial: Trial, found: Sequence[Figures]) -> Row:
    return Row(scenario, trial.case, trial.target, {name: [run[name] for run in found] for name in found[0]})
