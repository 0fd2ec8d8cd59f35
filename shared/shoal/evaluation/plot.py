"""A picture of an evaluation as SVG, which no library is needed for."""

import math
from collections.abc import Sequence
from html import escape

from shoal.evaluation.evaluation import Evaluation
from shoal.evaluation.table import shown_ms

#: Sizes in pixels: of a row, of the margins, of a character of a name, and of the two panels.
_ROW, _TOP, _BOTTOM, _CHARACTER, _PANEL, _TIMES = 26, 44, 44, 6.7, 420, 130

#: Most characters of a name that are drawn.
_MAX_NAME = 60

_INK, _GREY, _FIRST, _OTHERS = "#222222", "#d0d0d0", "#8a8a8a", "#0b3c5d"

#: About as many ticks an axis has.
_NUM_TICKS = 6


def svg(evaluation: Evaluation, title: str) -> str:
    """Return the first measure of each setting with its interval, beside the median time of a search.

    A line marks the mean of the first setting.
    """
    names = [name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…" for name in evaluation.names]
    left = 24 + math.ceil(_CHARACTER * max(map(len, names)))
    height = _TOP + _ROW * len(names) + _BOTTOM
    has_times = any(evaluation.times)
    width = left + _PANEL + (_TIMES if has_times else 24)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(left, 20, title, weight="bold"),
        *_panel(evaluation, names, left),
    ]
    if has_times:
        parts += _times(evaluation, left + _PANEL + _TIMES - 24)
    return "\n".join([*parts, "</svg>", ""])


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers that reach from `low` or below to `high` or above."""
    rough = max(high - low, 1e-9) / _NUM_TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, max(last, first + 1) + 1)]


def _panel(evaluation: Evaluation, names: Sequence[str], left: int) -> list[str]:
    intervals = [of_setting[0] for of_setting in evaluation.intervals]
    marks = ticks(100 * min(each.low for each in intervals), 100 * max(each.high for each in intervals))
    bottom = _TOP + _ROW * len(names)

    def x(value: float) -> float:
        return left + 10 + (value - marks[0]) / (marks[-1] - marks[0]) * (_PANEL - 20)

    parts = []
    for mark in marks:
        parts += [
            _line(x(mark), _TOP, x(mark), bottom, _GREY),
            _text(x(mark), bottom + 16, f"{mark:g}", anchor="middle"),
        ]
    parts.append(_text(left + _PANEL / 2, bottom + 34, f"{evaluation.measures[0]} x 100", anchor="middle"))
    parts.append(_line(x(100 * intervals[0].mean), _TOP, x(100 * intervals[0].mean), bottom, _FIRST, dashes="4 3"))
    for n, (name, (mean, low, high)) in enumerate(zip(names, intervals, strict=True)):
        y, colour = _TOP + _ROW * (n + 0.5), _OTHERS if n else _FIRST
        parts += [
            _text(left - 8, y + 4, name, anchor="end"),
            _line(x(100 * low), y, x(100 * high), y, colour, width=2),
            f'<circle cx="{x(100 * mean):.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>',
        ]
    return parts


def _times(evaluation: Evaluation, right: float) -> list[str]:
    parts = [_text(right, _TOP - 8, "ms a search", anchor="end")]
    for n, found in enumerate(evaluation.times):
        if found:
            parts.append(_text(right, _TOP + _ROW * (n + 0.5) + 4, shown_ms(found.p50_ms), anchor="end"))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"{dashed}/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
