"""Draw the panels of the Grafana board of what a Prometheus has measured, where there is no Grafana."""

import argparse
import io
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

BOARD = Path(__file__).parent.parent / "deploy" / "grafana" / "shoal.json"

#: Points in time of each line, and the seconds over which rates are taken: what Grafana takes of a scrape each 5 s.
NUM_POINTS, RATE_S = 90, 20

#: Inches of a line of the board's grid and of its 24 columns.
LINE, WIDTH = 0.36, 15.0

#: The factor and the unit in which values of a unit of Grafana are shown.
UNITS = {
    "percentunit": (100.0, "%"),
    "bytes": (2.0**-20, "MiB"),
    "reqps": (1.0, "/s"),
    "cps": (1.0, "/s"),
    "s": (1.0, "s"),
}

#: Colours of the lines of a panel, in their order.
COLOURS = ("#0b3c5d", "#d9822b", "#3a7d44", "#8a8a8a", "#5a2a27", "#7fb3d5", "#b8860b", "#a23b72")


@dataclass(frozen=True, slots=True)
class Line:
    """The values of a query for one set of labels, at each point in time; NaN where there is none."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A Prometheus server and the time of the picture, in Unix seconds."""

    url: str
    begin_s: float
    end_s: float

    @property
    def step_s(self) -> float:
        """Seconds from one point to the next."""
        return (self.end_s - self.begin_s) / (NUM_POINTS - 1)

    @property
    def minutes(self) -> list[float]:
        """Minutes from the beginning to each point."""
        return [n * self.step_s / 60 for n in range(NUM_POINTS)]

    def lines(self, panel: Mapping[str, Any]) -> Iterator[Line]:
        """Yield the lines of a panel."""
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", f"{RATE_S}s").replace("$job", ".*")
            query = {"query": expression, "start": self.begin_s, "end": self.end_s, "step": self.step_s}
            with urlopen(f"{self.url}/api/v1/query_range?{urlencode(query)}") as answer:
                found = json.load(answer)["data"]["result"]
            for series in found:
                found_at = {round((at - self.begin_s) / self.step_s): float(value) for at, value in series["values"]}
                values = [found_at.get(n, float("nan")) for n in range(NUM_POINTS)]
                yield Line(legend(target["legendFormat"], series["metric"]), values)


def legend(words: str, labels: Mapping[str, str]) -> str:
    """Return the name of a line. Of the id of a worker, its random part is enough."""
    return re.sub(r"{{(\w+)}}", lambda label: labels[label[1]].rpartition("-")[2], words)


def draw(board: Mapping[str, Any], prometheus: Prometheus) -> None:
    """Write the picture to standard output as SVG."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "shoal", "svg.fonttype": "none", "font.size": 8, "font.family": "sans-serif"})
    from matplotlib import pyplot

    num_lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure = pyplot.figure(figsize=(WIDTH, LINE * num_lines))
    for panel in board["panels"]:
        place = panel["gridPos"]
        left, width = place["x"] / 24, place["w"] / 24
        top, height = 1 - place["y"] / num_lines, place["h"] / num_lines
        lines = list(prometheus.lines(panel))
        if panel["type"] == "stat":
            _write_number(figure, panel, lines, left + width / 2, top, height)
        else:
            area = (left + 0.03, top - height + 1.1 / num_lines, width - 0.04, height - 2.2 / num_lines)
            _plot(figure.add_axes(area), panel, lines, prometheus.minutes)
    picture = io.StringIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    exact_enough = re.sub(r"(\d\.\d)\d{4,}", r"\1", picture.getvalue())  # to a tenth of a point
    sys.stdout.write(re.sub(r"\n +", "\n", exact_enough))


def _write_number(
    figure: Any, panel: Mapping[str, Any], lines: Sequence[Line], middle: float, top: float, height: float
) -> None:
    """Write the last value of the panel below its title."""
    factor, unit = UNITS.get(panel["fieldConfig"]["defaults"]["unit"], (1.0, ""))
    last = [line.values[-1] * factor for line in lines if not isnan(line.values[-1])]
    figure.text(middle, top - 0.25 * height, panel["title"], ha="center", weight="bold")
    text = ", ".join(f"{value:.3g}" for value in last) + f" {unit}" if last else "no data"
    figure.text(middle, top - 0.7 * height, text, ha="center", size=16, color=COLOURS[0])


def _plot(axis: Any, panel: Mapping[str, Any], lines: Sequence[Line], minutes: Sequence[float]) -> None:
    """Draw the lines of the panel over minutes, stacked where Grafana stacks them."""
    defaults = panel["fieldConfig"]["defaults"]
    factor, unit = UNITS.get(defaults["unit"], (1.0, ""))
    axis.set_title(panel["title"] + (f" ({unit})" if unit else ""), loc="left", weight="bold", size=8)
    drawn = [[value * factor for value in line.values] for line in lines]
    colours = [COLOURS[n % len(COLOURS)] for n in range(len(lines))]
    names = [line.name for line in lines]
    if defaults["custom"]["stacking"]["mode"] == "normal" and lines:
        filled = [[0.0 if isnan(value) else value for value in values] for values in drawn]
        axis.stackplot(minutes, filled, labels=names, colors=colours, linewidth=0)
    else:
        for name, values, colour in zip(names, drawn, colours, strict=True):
            axis.plot(minutes, values, label=name, color=colour, linewidth=1)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e4e4e4", linewidth=0.5)
    axis.set_xlim(0, minutes[-1])
    axis.set_xlabel("minutes", size=6, labelpad=1)
    axis.tick_params(labelsize=6)
    if "min" in defaults:
        axis.set_ylim(bottom=0)
    if lines:
        axis.legend(frameon=False, fontsize=6, ncols=3, loc="lower right", bbox_to_anchor=(1.02, 0.97), handlelength=1)


def main() -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(prog="scripts/board-plot", description=__doc__)
    parser.add_argument("url", help="address of the Prometheus, such as http://localhost:9090")
    parser.add_argument("minutes", type=float, help="length of the picture")
    parser.add_argument(
        "end", type=float, nargs="?", default=time.time(), help="its end in Unix seconds; now by itself"
    )
    asked = parser.parse_args()
    if not asked.minutes > 0:
        parser.error("minutes must be over 0")
    prometheus = Prometheus(asked.url.rstrip("/"), asked.end - 60 * asked.minutes, asked.end)
    try:
        draw(json.loads(BOARD.read_text()), prometheus)
    except (OSError, ValueError, LookupError) as error:  # what answers is no Prometheus, or the address is none
        sys.exit(f"{asked.url} does not answer as a Prometheus does ({error}): check that it runs and its address")


if __name__ == "__main__":
    main()
