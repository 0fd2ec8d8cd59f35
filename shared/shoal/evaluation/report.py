"""The report of an evaluation: Markdown tables, in which measures are multiplied by 100."""

from collections.abc import Iterable, Sequence

from shoal.evaluation.evaluation import CONFIDENCE, Evaluation, Interval


def tables(evaluation: Evaluation) -> str:
    """Return a table of all measures and, for several settings, a table of their differences from the first setting."""
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
            [each.setting, _mean(each.interval, "+"), _probability(each.p), _probability(each.p_of_all)]
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


def _probability(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
