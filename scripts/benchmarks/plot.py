"""The figures as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.trial import Row

#: Colours of the targets, in their order of appearance; they can be told apart in grey.
COLOURS = ("#0b3c5d", "#d9822b", "#8a8a8a", "#b8d4e3", "#5a2a27")

#: For each panel: the scenario, the end of the names of its cases, the label of the x axis, and the figure that is
#: drawn.
PANELS = (
    ("embed", "x 1 headline", "connections, one headline a request", "requests/s"),
    ("search", ", 1 connection", "documents, one connection", "p50 ms"),
)


def save(rows: Sequence[Row], path: Path) -> bool:
    """Draw what was measured of embedding and searching; return False if that is nothing."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "shoal"
    from matplotlib import pyplot

    of_panels = [
        [row for row in rows if row.scenario == scenario and row.case.endswith(case) and figure in row.figures]
        for scenario, case, _, figure in PANELS
    ]
    panels = [(panel, found) for panel, found in zip(PANELS, of_panels, strict=True) if found]
    if not panels:
        return False
    figure = pyplot.figure(figsize=(5 * len(panels), 3.5))
    for number, ((scenario, _, x_label, name), found) in enumerate(panels, 1):
        axis = figure.add_subplot(1, len(panels), number, xlabel=x_label, ylabel=name)
        _draw(axis, scenario, found, name)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return True


def _draw(axis: Any, scenario: str, rows: Sequence[Row], name: str) -> None:
    """Draw bars of each target, with a line from the lowest to the highest value."""
    cases = list(dict.fromkeys(_tick(scenario, row) for row in rows))
    targets = list(dict.fromkeys(row.target for row in rows))
    width = 0.8 / len(targets)
    for number, target in enumerate(targets):
        of_target = [row for row in rows if row.target == target]
        offset = (number - (len(targets) - 1) / 2) * width
        places = [cases.index(_tick(scenario, row)) + offset for row in of_target]
        middles = [row.median(name) for row in of_target]
        errors = [[abs(pick(row.figures[name]) - row.median(name)) for row in of_target] for pick in (min, max)]
        colour = COLOURS[number % len(COLOURS)]
        axis.bar(places, middles, width, color=colour, yerr=errors, label=target, error_kw={"capsize": 2})
    axis.set_xticks(range(len(cases)), cases)
    axis.legend(frameon=False)


def _tick(scenario: str, row: Row) -> str:
    if scenario == "search":
        return f"{int(row.case.split(',')[0].split(' n')[1]):,}"
    return row.case.split(" connection")[0]
