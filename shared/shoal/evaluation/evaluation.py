"""Measures of settings as trec_eval computes them, with confidence intervals and significance tests.

Intervals and tests resample the queries. The random numbers come from a fixed seed, so equal values give equal results.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.evaluation.collection import Collection
from shoal.evaluation.run import Rankings, Setting, Times

#: Number of resamples for an interval and for a test, and largest number of resamples in memory at a time.
NUM_RESAMPLES, _AT_A_TIME = 10_000, 100

#: Share of the resamples whose mean lies in the interval.
CONFIDENCE = 0.95

_SEED = 20_261_123

#: The value of a measure for each query, float64 `[queries]`.
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over the queries, with an interval that contains `CONFIDENCE` of the means over resampled queries."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between a setting and the first setting, measured with the same queries.

    `p` is the probability that chance alone makes a difference at least as large. `p_of_all` is `p`, corrected for the
    number of comparisons. `num_better` queries have a higher value than with the first setting.
    """

    setting: str
    interval: Interval
    p: float
    p_of_all: float
    num_better: int
    num_worse: int
    num_equal: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of a setting: the mean of each measure, its values by query, and the times of searches."""

    setting: str
    options: Mapping[str, Any]
    measures: Mapping[str, Interval]
    times: Times | None
    values: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of settings for one collection. `differences` compare each later setting with the first setting.

    `measure` names the measure that is compared. `shoal eval --json` writes an evaluation as a map.
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
        k: int,
        depth: int,
    ) -> Self:
        """Compute the measures of each setting. `rankings` and `times` have an entry for each, in the same order."""
        judged, found = collection.judgements, []
        for setting, of_setting, its_times in zip(settings, rankings, times, strict=True):
            values: dict[str, dict[str, float]] = {}
            for query, ranking in of_setting.items():
                gains = [judged[query].get(document, 0) for document in ranking]
                for name, value in measures(gains, [*judged[query].values()], k, depth).items():
                    values.setdefault(name, {})[query] = value
            means = {name: interval(np.array([*of_queries.values()])) for name, of_queries in values.items()}
            found.append(Figures(setting.name, setting.options, means, its_times, values))
        names, measure = [setting.name for setting in settings], f"nDCG@{k}"
        compared = differences(names, [np.array([*each.values[measure].values()]) for each in found])
        return cls(len(collection.queries), collection.num_left_out, found, names[0], measure, compared)


def measures(gains: Sequence[int], judged: Sequence[int], k: int, depth: int) -> dict[str, float]:
    """Return nDCG and the reciprocal rank of the first `k` hits, recall and average precision of the first `depth`.

    `gains` has the gain of each hit of a query, best first. `judged` has the gains of all documents that were judged
    for the query. At least one gain is above 0, which means relevant.
    """
    num_relevant = sum(gain > 0 for gain in judged)
    ranks = [rank for rank, gain in enumerate(gains[:depth], 1) if gain > 0]
    found, best = (
        sum(gain / math.log2(rank + 1) for rank, gain in enumerate(ranking[:k], 1) if gain > 0)
        for ranking in (gains, sorted(judged, reverse=True))
    )
    return {
        f"nDCG@{k}": found / best,
        f"recall@{depth}": len(ranks) / num_relevant,
        f"MRR@{k}": next((1 / rank for rank, gain in enumerate(gains[:k], 1) if gain > 0), 0.0),
        f"MAP@{depth}": sum(number / rank for number, rank in enumerate(ranks, 1)) / num_relevant,
    }


def interval(values: Values) -> Interval:
    """Return the mean of the values and its confidence interval, computed by a bootstrap over the queries."""
    rng, num = np.random.default_rng(_SEED), len(values)
    means = [values[rng.integers(num, size=(_AT_A_TIME, num))].mean(axis=1) for _ in range(NUM_RESAMPLES // _AT_A_TIME)]
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(values.mean()), float(low), float(high))


def differences(names: Sequence[str], values: Sequence[Values]) -> list[Difference]:
    """Return each later setting's difference from the first. All arrays in `values` have the same order of queries."""
    deltas = [each - values[0] for each in values[1:]]
    for each in deltas:
        each[np.abs(each) < 1e-12] = 0.0  # equal rankings may differ a little by rounding
    ps = [_probability(each) for each in deltas]
    # Holm's correction: if no setting is better, any of these values is below 0.05 in at most 5 % of evaluations.
    ps_of_all, largest = list(ps), 0.0
    for rank, place in enumerate(np.argsort(ps, kind="stable").tolist()):
        ps_of_all[place] = largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
    return [
        Difference(name, interval(each), p, p_of_all, *(int(mask.sum()) for mask in (each > 0, each < 0, each == 0)))
        for name, each, p, p_of_all in zip(names[1:], deltas, ps, ps_of_all, strict=True)
    ]


def _probability(deltas: Values) -> float:
    """Return `p` from Fisher's paired, two-sided randomisation test, which changes the signs of `deltas` at random."""
    rng, num_as_large = np.random.default_rng(_SEED), 0
    for _ in range(NUM_RESAMPLES // _AT_A_TIME):
        signs = rng.integers(2, size=(_AT_A_TIME, len(deltas)), dtype=np.int8) * 2 - 1
        num_as_large += int((np.abs(signs @ deltas) >= np.abs(deltas.sum()) - 1e-9).sum())
    return (num_as_large + 1) / (NUM_RESAMPLES + 1)


def tables(evaluation: Evaluation) -> str:
    """Return Markdown tables of all measures, x 100, and of the differences of several settings from the first one."""
    left_out = f" ({evaluation.left_out:,} without a relevant document left out)" if evaluation.left_out else ""
    rows = [
        [each.setting, *map(_mean, each.measures.values())]
        + ([_ms(each.times.p50_ms), _ms(each.times.p90_ms)] if each.times else ["", ""])
        for each in evaluation.settings
    ]
    lines = [
        f"{evaluation.queries:,} queries{left_out}; means x 100, with intervals of {CONFIDENCE:.0%}:\n",
        *_table(["setting", *evaluation.settings[0].measures, "p50 ms", "p90 ms"], rows),
    ]
    if evaluation.differences:
        rows = [
            [each.setting, _mean(each.interval, "+"), _shown_p(each.p), _shown_p(each.p_of_all)]
            + [f"{num:,}" for num in (each.num_better, each.num_worse, each.num_equal)]
            for each in evaluation.differences
        ]
        lines += [f"\n{evaluation.measure} x 100 against {evaluation.compared_with}:\n"]
        lines += _table(["setting", "difference", "p", "p of all", "better", "worse", "equal"], rows)
    return "\n".join(lines)


def _ms(time_ms: float) -> str:
    """Return a time with two decimals below 10 ms, one decimal below 100 ms, and no decimals otherwise."""
    return f"{time_ms:.{2 if time_ms < 10 else 1 if time_ms < 100 else 0}f}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def _mean(interval: Interval, sign: str = "") -> str:
    mean, low, high = (f"{100 * value:{sign}.1f}" for value in (interval.mean, interval.low, interval.high))
    return f"{mean} ({low} to {high})"


def _shown_p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
