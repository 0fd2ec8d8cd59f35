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
    ("pool", "", "workers that wait 20 ms a batch", "requests/s"),
)


def save(rows: Sequence[Row], path: Path) -> bool:
    """Draw what was measured of embedding, searching and the pool; return False if that is nothing."""
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
    columns, lines = min(2, len(panels)), -(-len(panels) // 2)
    figure = pyplot.figure(figsize=(5 * columns, 3.5 * lines))
    for number, ((scenario, _, x_label, name), found) in enumerate(panels, 1):
        axis = figure.add_subplot(lines, columns, number, xlabel=x_label, ylabel=name)
        _draw(axis, scenario, found, name)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return True


def _draw(axis: Any, scenario: str, rows: Sequence[Row], name: str) -> None:
    """Draw bars of each target, with a line from the lowest to the highest value; of pools, lines over their sizes."""
    cases = list(dict.fromkeys(_tick(scenario, row) for row in rows))
    ticks = list(map(int, cases)) if scenario == "pool" else list(range(len(cases)))
    if scenario in ("embed", "search"):
        targets = list(dict.fromkeys(row.target for row in rows))
        width = 0.8 / len(targets)
        for number, target in enumerate(targets):
            of_target = [row for row in rows if row.target == target]
            places = [
                cases.index(_tick(scenario, row)) + (number - (len(targets) - 1) / 2) * width for row in of_target
            ]
            middles = [row.median(name) for row in of_target]
            errors = [[abs(pick(row.figures[name]) - row.median(name)) for row in of_target] for pick in (min, max)]
            colour = COLOURS[number % len(COLOURS)]
            axis.bar(places, middles, width, color=colour, yerr=errors, label=target, error_kw={"capsize": 2})
    else:
        lines = {
            name: [row.median(name) for row in rows],
            "so many times one worker's": [size * rows[0].median(name) for size in ticks],
        }
        for colour, (label, values) in zip(COLOURS, lines.items(), strict=False):
            axis.plot(ticks, values, "o-", color=colour, label=label)
    axis.set_xticks(ticks, cases)
    axis.legend(frameon=False)


def _tick(scenario: str, row: Row) -> str:
    if scenario == "search":
        return f"{int(row.case.split(',')[0].split(' n')[1]):,}"
    return row.target.split()[0] if scenario == "pool" else row.case.split(" connection")[0]
