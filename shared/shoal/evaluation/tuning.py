"""Tuning: which of several settings to serve, with what that is expected to bring on other queries."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.evaluation.evaluation import Evaluation
from shoal.evaluation.resampling import Values, difference
from shoal.evaluation.setting import Setting

#: Shares of the dense part that are tried in the mode `hybrid`.
ALPHAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

#: Numbers of hits that are reranked.
RERANKED = (10, 20, 50)

#: Parts of the queries, each of which is left out once while a setting is chosen by the others.
NUM_FOLDS = 5

#: Largest p-value at which a difference counts as significant.
SIGNIFICANT = 0.05

#: A setting counts as faster if it takes at most this share of the best setting's time: a smaller gain is noise.
FASTER = 0.9

_SEED = 20_261_123


@dataclass(frozen=True, slots=True)
class Choice:
    """The setting with the highest mean, `best`, and the fastest, `fastest`, of those that are not known to be worse.

    Both are places in the list of settings. `held_out` is the mean of a choice on queries that it was not made by: what
    the choice brings on other queries of the kind.
    """

    best: int
    fastest: int
    held_out: float


def modes(alphas: Sequence[float] = ALPHAS) -> Iterator[Setting]:
    """Yield the settings of each mode, `hybrid` with each share of the dense part. The first one is dense."""
    yield Setting.parse("mode=dense")
    yield Setting.parse("mode=lexical")
    for alpha in alphas:
        yield Setting.parse(f"mode=hybrid alpha={alpha:g}")


def reranked(setting: Setting, depths: Sequence[int] = RERANKED) -> Iterator[Setting]:
    """Yield the setting with each of these `depths` of reranking."""
    for depth in depths:
        yield setting.extended(f"rerank.top_n={depth}")


def best_of(values: Sequence[Values]) -> int:
    """Return the place of the setting with the highest mean, the first one of equal means."""
    return int(np.argmax([each.mean() for each in values]))


def choose(evaluation: Evaluation) -> Choice:
    """Choose among the settings of an evaluation with times."""
    values, best = evaluation.values, best_of(evaluation.values)
    p50s_ms = [times.p50_ms if times else math.inf for times in evaluation.times]
    fastest = best
    limit_ms = FASTER * p50s_ms[best]
    for place in np.argsort(p50s_ms, kind="stable").tolist():
        if p50s_ms[place] <= limit_ms and difference(values[place], values[best]).p > SIGNIFICANT:
            fastest = place
            break
    return Choice(best, fastest, held_out(values))


def held_out(values: Sequence[Values]) -> float:
    """Return the mean over all queries of the setting that is the best on the other parts of the queries."""
    table = np.stack(values)
    order = np.random.default_rng(_SEED).permutation(table.shape[1])
    folds = np.array_split(order, min(NUM_FOLDS, len(order)))
    found = []
    for fold in folds:
        others = np.setdiff1d(order, fold) if len(folds) > 1 else fold
        found.append(table[np.argmax(table[:, others].mean(axis=1)), fold])
    return float(np.concatenate(found).mean())
