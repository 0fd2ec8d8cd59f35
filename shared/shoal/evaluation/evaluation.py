"""Measures of settings as trec_eval computes them, and a test of their differences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.evaluation.collection import Collection
from shoal.evaluation.run import Rankings, Setting

#: Number of resamples for a test, and largest number of resamples in memory at a time.
NUM_RESAMPLES, _AT_A_TIME = 10_000, 100

_SEED = 20_261_123


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of a setting: the mean of each measure, and its values by query.

    `difference` is the mean difference of nDCG from the first setting. `p` is the probability that chance alone makes a
    difference at least as large.
    """

    setting: str
    options: Mapping[str, Any]
    measures: Mapping[str, float]
    values: Mapping[str, Mapping[str, float]]
    difference: float
    p: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of settings for one collection. `shoal eval --json` writes an evaluation as a map."""

    queries: int
    left_out: int
    settings: Sequence[Figures]

    @classmethod
    def of(
        cls, collection: Collection, settings: Sequence[Setting], rankings: Sequence[Rankings], k: int, depth: int
    ) -> Self:
        """Compute the measures of each setting. `rankings` has an entry for each setting, in the same order."""
        found, first = list[Figures](), np.empty(0)
        for setting, of_setting in zip(settings, rankings, strict=True):
            values: dict[str, dict[str, float]] = {}
            for query, judged in collection.judgements.items():
                gains = [judged.get(document, 0) for document in of_setting[query]]
                for name, value in measures(gains, [*judged.values()], k, depth).items():
                    values.setdefault(name, {})[query] = value
            means = {name: float(np.mean([*of_queries.values()])) for name, of_queries in values.items()}
            ndcg = np.array([*values[f"nDCG@{k}"].values()])
            first = first if found else ndcg
            deltas = ndcg - first
            found.append(
                Figures(setting.name, setting.options, means, values, float(deltas.mean()), probability(deltas))
            )
        return cls(len(collection.queries), collection.num_left_out, found)


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


def probability(deltas: NDArray[np.float64]) -> float:
    """Return `p` from Fisher's paired, two-sided randomisation test, which changes the signs of `deltas` at random.

    The random numbers come from a fixed seed, so equal differences give an equal `p`.
    """
    rng, num_as_large = np.random.default_rng(_SEED), 0
    for _ in range(NUM_RESAMPLES // _AT_A_TIME):
        signs = rng.integers(2, size=(_AT_A_TIME, len(deltas)), dtype=np.int8) * 2 - 1
        num_as_large += int((np.abs(signs @ deltas) >= np.abs(deltas.sum()) - 1e-9).sum())
    return (num_as_large + 1) / (NUM_RESAMPLES + 1)


def table(evaluation: Evaluation) -> str:
    """Return a Markdown table of all measures, x 100, and of the differences of nDCG from the first setting."""
    left_out = f" ({evaluation.left_out:,} without a relevant document left out)" if evaluation.left_out else ""
    columns = ["setting", *evaluation.settings[0].measures, "difference", "p"]
    rows = [
        [
            each.setting,
            *(f"{100 * mean:.1f}" for mean in each.measures.values()),
            f"{100 * each.difference:+.1f}",
            "< 0.001" if each.p < 0.001 else f"{each.p:.3f}",
        ]
        for each in evaluation.settings
    ]
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    lines.insert(1, "|---" * len(columns) + "|")
    return "\n".join([f"{evaluation.queries:,} queries{left_out}; means x 100:\n", *lines])
