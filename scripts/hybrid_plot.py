"""Draw how good dense, lexical and hybrid searches of some collections are, from the files of `shoal eval --json`."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.evaluation.plot import line, picture, text, ticks

#: The measure that is drawn.
MEASURE = "nDCG@10"

#: The share of the cosine that a hybrid search has by default.
ALPHA = 0.7

#: Sizes in pixels: of a panel, of what is beside it, above it and below it.
_SIDE, _LEFT, _TOP, _BOTTOM = 170, 46, 40, 58

_GREY, _DENSE, _HYBRID = "#e4e4e4", "#8a8a8a", "#0b3c5d"

#: Measured values by the share of the cosine: 0 for a lexical search, 1 for a dense one.
Curve = dict[float, float]


def curve_of(found: Mapping[str, Any]) -> Curve:
    """Return the measure times 100 of each setting that has no second stage."""
    curve = {}
    for setting in found["settings"]:
        options = setting["options"]
        if options.keys() <= {"mode", "alpha"}:
            alpha = {"lexical": 0.0, "dense": 1.0}.get(options["mode"], options.get("alpha", ALPHA))
            curve[alpha] = 100 * setting["measures"][MEASURE]["mean"]
    return dict(sorted(curve.items()))


def svg(curves: Mapping[str, Curve]) -> str:
    """Return a panel for each collection, side by side."""
    width, height = len(curves) * (_LEFT + _SIDE) + 20, _TOP + _SIDE + _BOTTOM
    panels = [_panel(name, curve, n * (_LEFT + _SIDE) + _LEFT) for n, (name, curve) in enumerate(curves.items())]
    return picture(width, height, panels)


def _panel(name: str, curve: Curve, left: float) -> str:
    marks = ticks(min(curve.values()), max(curve.values()))
    bottom, right = _TOP + _SIDE, left + _SIDE - 14

    def x(alpha: float) -> float:
        return left + 6 + alpha * (right - left - 12)

    def y(value: float) -> float:
        return bottom - (value - marks[0]) / (marks[-1] - marks[0]) * _SIDE

    points = " ".join(f"{x(alpha):.1f},{y(value):.1f}" for alpha, value in curve.items())
    dense, hybrid = curve[1.0], curve[ALPHA]
    parts = [text(left, 20, name, weight="bold")]
    for mark in marks:
        parts += [line(left, y(mark), right, y(mark), _GREY), text(left - 6, y(mark) + 4, f"{mark:g}", "end")]
    parts += [
        line(left, y(dense), right, y(dense), _DENSE, 'stroke-dasharray="4 3"'),
        f'<polyline points="{points}" fill="none" stroke="{_HYBRID}" stroke-width="2"/>',
        f'<circle cx="{x(ALPHA):.1f}" cy="{y(hybrid):.1f}" r="4.5" fill="{_HYBRID}"/>',
        f'<circle cx="{x(1):.1f}" cy="{y(dense):.1f}" r="4.5" fill="{_DENSE}"/>',
        text(x(0), bottom + 18, "lexical", "start"),
        text(x(ALPHA), bottom + 18, f"{ALPHA:g}", "middle"),
        text(right + 6, bottom + 18, "dense", "end"),
        text(left, bottom + 38, f"dense {dense:.1f}, hybrid {hybrid:.1f} ({hybrid - dense:+.1f})"),
    ]
    return "\n".join(parts)


def main(arguments: Sequence[str]) -> None:
    """Write the picture of the collections, each given as NAME=FILE, to standard output."""
    named = (argument.rpartition("=") for argument in arguments)
    curves = {name: curve_of(json.loads(Path(file).read_text("utf-8"))) for name, _, file in named}
    sys.stdout.write(svg(curves))


if __name__ == "__main__":
    main(sys.argv[1:])
