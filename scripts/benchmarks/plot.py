"""The figures as a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Results
from shoal.bench.trial import Row

#: Colours of the targets, in their order of appearance; they can be told apart in grey.
COLOURS = ("#0b3c5d", "#d9822b", "#8a8a8a", "#b8d4e3", "#5a2a27")


def save(results: Results, path: Path) -> bool:
    """Draws what was measured of embedding, arrival rates, searching and the pool; False if that is nothing."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "shoal"
    from matplotlib import pyplot

    panels = [(rows, draw) for scenario, wanted, draw in PANELS if (rows := _rows(results, scenario, wanted))]
    if not panels:
        return False
    columns, lines = min(2, len(panels)), -(-len(panels) // 2)
    figure = pyplot.figure(figsize=(5 * columns, 3.5 * lines))
    for number, (rows, draw) in enumerate(panels, 1):
        axis = figure.add_subplot(lines, columns, number)
        draw(axis, rows)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return True


def _rows(results: Results, scenario: str, wanted: Callable[[Row], bool]) -> list[Row]:
    return [row for row in results.rows if row.scenario == scenario and "requests/s" in row.figures and wanted(row)]


def _embed(axis: Any, rows: Sequence[Row]) -> None:
    cases, targets = _unique(row.case for row in rows), _unique(row.target for row in rows)
    width = 0.8 / len(targets)
    for row in rows:
        number = targets.index(row.target)
        place = cases.index(row.case) + (number - (len(targets) - 1) / 2) * width
        _bar(axis, place, row, width, COLOURS[number % len(COLOURS)])
    axis.set_xticks(range(len(cases)), [case.split()[0] for case in cases])
    axis.legend(handles=[_patch(COLOURS[n % len(COLOURS)], name) for n, name in enumerate(targets)], frameon=False)
    axis.set_xlabel("connections, one headline a request")
    axis.set_ylabel("requests/s")


def _open(axis: Any, rows: Sequence[Row]) -> None:
    shares = [row.case.partition(" of")[0] for row in rows]
    for percent, colour in zip(("p50 ms", "p99 ms"), COLOURS, strict=False):
        axis.plot(shares, [row.median(percent) for row in rows], "o-", color=colour)
        axis.annotate(percent[:3], (len(rows) - 1, rows[-1].median(percent)), textcoords="offset points", xytext=(5, 4))
    axis.set_xlabel("arrival rate, of capacity")
    axis.set_ylabel("latency from the time due, ms")


def _search(axis: Any, rows: Sequence[Row]) -> None:
    for place, row in enumerate(rows):
        _bar(axis, place, row, 0.6, COLOURS[0], "p50 ms")
    axis.set_xticks(range(len(rows)), [f"{int(row.case.split(',')[0].split(' n')[1]):,}" for row in rows])
    axis.set_xlabel("documents, one connection")
    axis.set_ylabel("search p50, ms")


def _pool(axis: Any, rows: Sequence[Row]) -> None:
    sizes, rates = [int(row.target.split()[0]) for row in rows], [row.median("requests/s") for row in rows]
    axis.plot(sizes, rates, "o-", color=COLOURS[0], label="measured")
    axis.plot(sizes, [size * rates[0] for size in sizes], "--", color=COLOURS[2], label="so many times one worker's")
    axis.set_xticks(sizes)
    axis.legend(frameon=False)
    axis.set_xlabel("workers that wait 20 ms a batch")
    axis.set_ylabel("requests/s")


def _bar(axis: Any, place: float, row: Row, width: float, colour: str, figure: str = "requests/s") -> None:
    values, middle = row.figures[figure], row.median(figure)
    spread = [[middle - min(values)], [max(values) - middle]]
    axis.bar(place, middle, width, color=colour, yerr=spread, error_kw={"elinewidth": 0.8, "capsize": 2})


def _patch(colour: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=label)


def _unique(names: Any) -> list[str]:
    return list(dict.fromkeys(names))


#: Of each panel: the scenario, which of its rows, and who draws them.
PANELS = (
    ("embed", lambda row: row.case.endswith("x 1 headline"), _embed),
    ("open", lambda row: row.case.endswith("of capacity"), _open),
    ("search", lambda row: row.case.endswith(", 1 connection"), _search),
    ("pool", lambda _: True, _pool),
)
