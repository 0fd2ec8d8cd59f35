"""The figures as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.bench.trial import Row

#: Colours of the targets, in their order of appearance; they can be told apart in grey.
COLOURS = ("#0b3c5d", "#d9822b", "#8a8a8a", "#b8d4e3", "#5a2a27")


def save(rows: Sequence[Row], path: Path) -> bool:
    """Draw what was measured of embedding, arrival rates, searching and the pool; return False if that is nothing."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "shoal"
    from matplotlib import pyplot

    rated = [row for row in rows if "requests/s" in row.figures]
    chosen = {key: [r for r in rated if r.scenario == key[0] and r.case.endswith(key[1])] for key in PANELS}
    panels = [(PANELS[key], of_panel) for key, of_panel in chosen.items() if of_panel]
    if not panels:
        return False
    columns, lines = min(2, len(panels)), -(-len(panels) // 2)
    figure = pyplot.figure(figsize=(5 * columns, 3.5 * lines))
    for number, ((draw, x_label, y_label), of_panel) in enumerate(panels, 1):
        axis = figure.add_subplot(lines, columns, number, xlabel=x_label, ylabel=y_label)
        draw(axis, of_panel)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return True


def _embed(axis: Any, rows: Sequence[Row]) -> None:
    cases, targets = (
        list(dict.fromkeys(names)) for names in zip(*((row.case, row.target) for row in rows), strict=True)
    )
    width = 0.8 / len(targets)
    for number, target in enumerate(targets):
        of_target = [row for row in rows if row.target == target]
        places = [cases.index(row.case) + (number - (len(targets) - 1) / 2) * width for row in of_target]
        _bars(axis, places, of_target, width, COLOURS[number % len(COLOURS)], "requests/s", target)
    axis.set_xticks(range(len(cases)), [case.split()[0] for case in cases])
    axis.legend(frameon=False)


def _open(axis: Any, rows: Sequence[Row]) -> None:
    shares = [row.case.partition(" of")[0] for row in rows]
    for percent, colour in zip(("p50 ms", "p99 ms"), COLOURS, strict=False):
        axis.plot(shares, [row.median(percent) for row in rows], "o-", color=colour)
        axis.annotate(percent[:3], (len(rows) - 1, rows[-1].median(percent)), textcoords="offset points", xytext=(5, 4))


def _search(axis: Any, rows: Sequence[Row]) -> None:
    _bars(axis, range(len(rows)), rows, 0.6, COLOURS[0], "p50 ms")
    axis.set_xticks(range(len(rows)), [f"{int(row.case.split(',')[0].split(' n')[1]):,}" for row in rows])


def _pool(axis: Any, rows: Sequence[Row]) -> None:
    sizes, rates = [int(row.target.split()[0]) for row in rows], [row.median("requests/s") for row in rows]
    axis.plot(sizes, rates, "o-", color=COLOURS[0], label="measured")
    axis.plot(sizes, [size * rates[0] for size in sizes], "--", color=COLOURS[2], label="so many times one worker's")
    axis.set_xticks(sizes)
    axis.legend(frameon=False)


def _bars(
    axis: Any, places: Sequence[float], rows: Sequence[Row], width: float, colour: str, name: str, label: str = ""
) -> None:
    """Draw a bar for the median of each row, with a line from the lowest to the highest value."""
    middles = [row.median(name) for row in rows]
    below = [middle - min(row.figures[name]) for middle, row in zip(middles, rows, strict=True)]
    above = [max(row.figures[name]) - middle for middle, row in zip(middles, rows, strict=True)]
    error = {"elinewidth": 0.8, "capsize": 2}
    axis.bar(places, middles, width, color=colour, yerr=[below, above], error_kw=error, label=label)


#: By scenario and end of the case: the function that draws the panel, and its labels.
PANELS = {
    ("embed", "x 1 headline"): (_embed, "connections, one headline a request", "requests/s"),
    ("open", "of capacity"): (_open, "arrival rate, of capacity", "latency from the time due, ms"),
    ("search", ", 1 connection"): (_search, "documents, one connection", "search p50, ms"),
    ("pool", ""): (_pool, "workers that wait 20 ms a batch", "requests/s"),
}
