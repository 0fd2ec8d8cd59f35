"""The figures of formats and clients as a picture, beside those of a reference."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.formats import FORMATS, SLOWEST
from benchmarks.plot import COLOURS
from shoal.bench.trial import Row

#: How many times longer JSON by `json` took than JSON by orjson and than raw bytes in the reference: FastAPI without a
#: model, which answers 32 random vectors of 1,024 numbers to an asyncio client.
#: https://aminediro.com/posts/serve_embedding/
REFERENCE = {"reference": (11.0, 33.0)}

#: The formats of float32 that are drawn.
DRAWN = list(FORMATS)[:8]


def compared(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Return how many times longer JSON by `json` takes than JSON by orjson and than raw bytes, by what is measured."""

    def ratios(scenario: str, case: str, targets: Sequence[str], figures: Sequence[str]) -> tuple[float, float]:
        chosen = [row for row in rows if (row.scenario, row.case) == (scenario, case)]
        medians = {row.target: sum(map(row.median, figures)) for row in chosen}
        slowest, orjson, raw = (medians[target] for target in targets)
        return slowest / orjson, slowest / raw

    alone = ("JSON, standard library", "JSON, orjson", "raw bytes"), ("write ms", "read ms")
    through_http = (SLOWEST, "JSON, read by `orjson`", "raw"), ("both ms",)
    return REFERENCE | {
        "written and read alone, 32 x 1,024": ratios("alone", "32 x 1,024", *alone),
        **{
            f"HTTP, {size} x 384, {scenario}": ratios(scenario, f"{size} vectors", *through_http)
            for scenario in ("from the cache", "computed")
            for size in (32, 256)
        },
    }


def save(rows: Sequence[Row], path: Path) -> None:
    """Draw the times of the formats, the ratios to JSON, and the rates of the clients."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "shoal"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(12, 8))
    for axis, size in zip(axes[0], (32, 256), strict=True):
        _draw_formats(axis, [row for row in rows if row.case == f"{size} vectors"], size)
    _draw_ratios(axes[1][0], compared(rows))
    _draw_clients(axes[1][1], [row for row in rows if row.scenario == "clients, from the cache"])
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _plain(name: str) -> str:
    return name.replace("`", "")


def _draw_formats(axis: Any, rows: Sequence[Row], size: int) -> None:
    cached = {row.target: row for row in rows if row.scenario == "from the cache"}
    answers = [cached[name].median("answer ms") for name in DRAWN]
    axis.barh(list(map(_plain, DRAWN)), answers, color=COLOURS[0], label="answer")
    readings = [cached[name].median("reading ms") for name in DRAWN]
    axis.barh(list(map(_plain, DRAWN)), readings, left=answers, color=COLOURS[1], label="reading")
    axis.invert_yaxis()
    axis.set_xlabel(f"ms, {size} vectors from the cache")


def _draw_ratios(axis: Any, found: Mapping[str, tuple[float, float]]) -> None:
    for n, name in enumerate(("JSON by orjson", "raw bytes")):
        places = [place + (n - 0.5) * 0.4 for place in range(len(found))]
        axis.barh(places, [pair[n] for pair in found.values()], 0.4, color=COLOURS[n], label=name)
    axis.set_yticks(range(len(found)), found)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("times less time than JSON by json")


def _draw_clients(axis: Any, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(row.target for row in rows))
    cases = list(dict.fromkeys(row.case for row in rows))
    height = 0.8 / len(cases)
    for n, case in enumerate(cases):
        rates = {row.target: row.median("vectors/s") for row in rows if row.case == case}
        places = [names.index(name) + (n - (len(cases) - 1) / 2) * height for name in rates]
        axis.barh(places, list(rates.values()), height, color=COLOURS[n], label=case)
    axis.set_yticks(range(len(names)), map(_plain, names))
    axis.invert_yaxis()
    axis.set_xlabel("vectors a second, from the cache")
