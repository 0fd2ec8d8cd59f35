"""A chart of the results of scripts/bench."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.trial import Row

#: Colours of the targets, in the order in which the targets appear. They differ in grey too.
COLOURS = ("#0b3c5d", "#d9822b", "#8a8a8a", "#b8d4e3", "#5a2a27")

#: For each panel: the scenario, the prefix and suffix of its cases' names, the label of the x axis, the drawn figure.
PANELS = (
    ("peers", "64 connections x ", "", "text of a request, on 64 connections", "requests/s"),
    ("search", "search of ", ", 1 connection", "documents, one connection", "p50 ms"),
)


def save(rows: Sequence[Row], path: Path) -> bool:
    """Draw the comparison with peers and the searches; return False if there are no figures."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "shoal"
    from matplotlib import pyplot

    panels = []
    for scenario, start, end, x_label, name in PANELS:
        of_scenario = [row for row in rows if row.scenario == scenario and name in row.figures]
        found = [(row.case[len(start) :].removesuffix(end), row) for row in of_scenario if row.case.startswith(start)]
        if chosen := [(tick, row) for tick, row in found if row.case.endswith(end)]:
            panels.append((x_label, name, chosen))
    if not panels:
        return False
    figure = pyplot.figure(figsize=(5 * len(panels), 3.5))
    for number, (x_label, name, chosen) in enumerate(panels, 1):
        axis = figure.add_subplot(1, len(panels), number, xlabel=x_label, ylabel=name)
        _draw(axis, chosen, name)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return True


def _draw(axis: Any, chosen: Sequence[tuple[str, Row]], name: str) -> None:
    """Draw the bars of each target, with a line from the lowest to the highest value."""
    ticks = list(dict.fromkeys(tick for tick, _ in chosen))
    targets = list(dict.fromkeys(row.target for _, row in chosen))
    width = 0.8 / len(targets)
    for number, target in enumerate(targets):
        of_target = [(ticks.index(tick), row) for tick, row in chosen if row.target == target]
        offset = (number - (len(targets) - 1) / 2) * width
        middles = [row.median(name) for _, row in of_target]
        errors = [[abs(pick(row.figures[name]) - row.median(name)) for _, row in of_target] for pick in (min, max)]
        places = [place + offset for place, _ in of_target]
        colour = COLOURS[number % len(COLOURS)]
        axis.bar(places, middles, width, color=colour, yerr=errors, label=target, error_kw={"capsize": 2})
    axis.set_xticks(range(len(ticks)), ticks)
    axis.legend(frameon=False)
