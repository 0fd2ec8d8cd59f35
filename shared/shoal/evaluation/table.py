"""The figures of an evaluation as Markdown tables, in hundredths."""

from collections.abc import Sequence

from shoal.evaluation.evaluation import Evaluation
from shoal.evaluation.resampling import CONFIDENCE, Interval


def tables(evaluation: Evaluation) -> str:
    """Return a table of all measures and, with several settings, one of the differences to the first setting."""
    parts = [_measures(evaluation)]
    if len(evaluation.runs) > 1:
        parts.append(_differences(evaluation))
    return "\n\n".join(parts)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" if n != 1 else f"|{'|'.join(line)}|" for n, line in enumerate(lines))


def shown(interval: Interval, sign: str = "") -> str:
    """Return a mean with its interval, in hundredths; with `sign` "+" a plus stands before what is above 0."""
    mean, low, high = (f"{100 * value:{sign}.1f}" for value in interval)
    return f"{mean} ({low} to {high})"


def shown_p(p: float) -> str:
    """Return a probability; one below 0.001 as that."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def shown_ms(time_ms: float) -> str:
    """Return a time with two decimals below 10 ms, one below 100 ms, and none above."""
    return f"{time_ms:.{2 if time_ms < 10 else 1 if time_ms < 100 else 0}f}"


def _measures(evaluation: Evaluation) -> str:
    found = len(evaluation.collection.queries)
    left_out = evaluation.collection.num_left_out
    about = f"{found:,} queries" + (f" ({left_out:,} without a relevant document left out)" if left_out else "")
    columns = ["setting", *map(str, evaluation.measures), "p50 ms", "p90 ms"]
    rows = []
    for name, intervals, times in zip(evaluation.names, evaluation.intervals, evaluation.times, strict=True):
        ms = [shown_ms(times.p50_ms), shown_ms(times.p90_ms)] if times else ["", ""]
        rows.append([name, *map(shown, intervals), *ms])
    return f"{about}; means x 100, with intervals of {CONFIDENCE:.0%}:\n\n{table(columns, rows)}"


def _differences(evaluation: Evaluation) -> str:
    measure = evaluation.measures[0]
    columns = ["setting", "difference", "p", "p of all", "better", "worse", "equal"]
    rows = [
        [name, shown(each.interval, "+"), shown_p(each.p), shown_p(p)]
        + [f"{num:,}" for num in (each.num_better, each.num_worse, each.num_equal)]
        for name, each, p in zip(evaluation.names[1:], evaluation.differences, evaluation.adjusted_ps, strict=True)
    ]
    return f"{measure} x 100 against {evaluation.names[0]}:\n\n{table(columns, rows)}"
