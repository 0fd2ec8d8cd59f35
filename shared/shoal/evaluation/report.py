"""The report of an evaluation: Markdown tables, in which measures are multiplied by 100, and a picture as SVG."""

import math
from collections.abc import Iterable, Sequence
from html import escape

from shoal.evaluation.evaluation import CONFIDENCE, Evaluation, Interval

#: Sizes in pixels: a row, the upper and lower margin, a character of a name, and the two panels.
_ROW, _TOP, _BOTTOM, _CHARACTER, _PANEL, _TIMES = 26, 44, 44, 6.7, 420, 130

#: Longest name in the picture, in characters. Longer names are cut.
_MAX_NAME = 60

_INK, _GREY, _FIRST, _OTHERS = "#222222", "#d0d0d0", "#8a8a8a", "#0b3c5d"

#: Approximate number of ticks on an axis.
_NUM_TICKS = 6


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


def svg(evaluation: Evaluation, title: str) -> str:
    """Return an SVG chart of the settings: the mean of the compared measure, its interval, and the median search time.

    A line marks the mean of the first setting.
    """
    settings = evaluation.settings
    names = [
        each.setting if len(each.setting) <= _MAX_NAME else f"{each.setting[: _MAX_NAME - 1]}…" for each in settings
    ]
    means = [each.measures[evaluation.measure] for each in settings]
    marks = ticks(100 * min(each.low for each in means), 100 * max(each.high for each in means))
    left, bottom = 24 + math.ceil(_CHARACTER * max(map(len, names))), _TOP + _ROW * len(names)
    has_times = any(each.times for each in settings)
    right = left + _PANEL + (_TIMES if has_times else 24)

    def x(value: float) -> float:
        return left + 10 + (value - marks[0]) / (marks[-1] - marks[0]) * (_PANEL - 20)

    parts = [_text(left, 20, title, weight="bold")]
    for mark in marks:
        parts += [_line(x(mark), _TOP, x(mark), bottom, _GREY), _text(x(mark), bottom + 16, f"{mark:g}", "middle")]
    parts += [
        _text(left + _PANEL / 2, bottom + 34, f"{evaluation.measure} x 100", "middle"),
        _line(x(100 * means[0].mean), _TOP, x(100 * means[0].mean), bottom, _FIRST, 'stroke-dasharray="4 3"'),
        _text(right - 24, _TOP - 8, "ms a search" if has_times else "", "end"),
    ]
    for n, (name, mean, each) in enumerate(zip(names, means, settings, strict=True)):
        y, colour = _TOP + _ROW * (n + 0.5), _OTHERS if n else _FIRST
        parts += [
            _text(left - 8, y + 4, name, "end"),
            _line(x(100 * mean.low), y, x(100 * mean.high), y, colour, 'stroke-width="2"'),
            f'<circle cx="{x(100 * mean.mean):.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>',
            _text(right - 24, y + 4, _ms(each.times.p50_ms) if each.times else "", "end"),
        ]
    width, height = right, bottom + _BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join([*filter(None, parts), "</svg>\n"])
    )


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers at equal distances. The first is at most `low`, and the last at least `high`."""
    rough = max(high - low, 1e-9) / _NUM_TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, max(last, first + 1) + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, style: str = "") -> str:
    """Return the SVG of a line. `style` has further attributes."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {style}/>'


def _text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    """Return the SVG of the words, or "" without words."""
    tag = f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">'
    return f"{tag}{escape(words)}</text>" if words else ""
