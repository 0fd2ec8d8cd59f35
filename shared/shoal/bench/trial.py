"""Benchmarks: trials run in turns, their figures as a table, and the trials of `shoal bench` for a running service."""

import csv
import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from shoal.bench import wrk
from shoal.errors import InvalidRequest, NotReady

#: Longest warm-up before the runs that count.
WARM_UP_S = 2

#: How many requests further along the texts each run begins, so that no run repeats the one before.
STRIDE = 4_001

#: The figures of one run by name. A name `group: column` stands in a table of its own for the group.
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Trial:
    """Something to measure again and again: `run` takes the seconds and the number of the run.

    A run without figures does not count.
    """

    case: str
    target: str
    run: Callable[[int, int], Figures]


@dataclass(frozen=True, slots=True)
class Row:
    """What all runs of a trial found: a value of each figure for each run."""

    scenario: str
    case: str
    target: str
    figures: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        """The median of a figure over the runs."""
        return statistics.median(self.figures[name])


def interleave(
    scenario: str, trials: Sequence[Trial], runs: int, seconds: int, say: Callable[[str], object]
) -> list[Row]:
    """A row a trial: all trials once to warm up, then all of them in turn, as many times as there are runs."""
    found: list[list[Figures]] = [[] for _ in trials]
    for number in range(runs + 1):
        for trial, of_trial in zip(trials, found, strict=True):
            figures = trial.run(seconds if number else min(seconds, WARM_UP_S), number)
            if number and figures:
                of_trial.append(figures)
                name, value = next(iter(figures.items()))
                say(f"{scenario}, run {number}: {trial.case}, {trial.target}: {name} {shown(value)}")
    return [_row(scenario, trial, of_trial) for trial, of_trial in zip(trials, found, strict=True) if of_trial]


def load_trial(case: str, target: str, load: wrk.Load, texts_per_request: int = 1) -> Trial:
    """A trial that sends a load and finds its rate and its latencies."""
    return Trial(case, target, partial(_run_load, load, texts_per_request))


def figures_of(measured: wrk.Measured, texts_per_request: int) -> Figures:
    """Rate and latencies of a run."""
    return {
        "requests/s": measured.requests_per_s,
        "texts/s": measured.requests_per_s * texts_per_request,
        "p50 ms": measured.p50_ms,
        "p90 ms": measured.p90_ms,
        "p99 ms": measured.p99_ms,
    }


def tables(rows: Iterable[Row]) -> str:
    """The rows as Markdown: one table, and one for each group of figures, with median (lowest to highest)."""
    grouped: dict[str, list[tuple[Row, dict[str, Sequence[float]]]]] = {}
    for row in rows:
        for group, figures in _by_group(row.figures).items():
            grouped.setdefault(group, []).append((row, figures))
    return "\n\n".join(_table(group, of_group) for group, of_group in grouped.items())


def shown(value: float) -> str:
    """A number with the digits that matter."""
    digits = 0 if abs(value) >= 100 or value == int(value) else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def service_trials(url: str, texts: Sequence[str]) -> Iterator[Trial]:
    """Embedding and, where the service has an index, searching, with 1 connection and with 64.

    Raises MissingExtra without wrk, and NotReady unless a Shoal that is ready answers there.
    """
    wrk.find()
    _get(f"{url}/ready")
    names = [index["name"] for index in _get(f"{url}/v1/indexes")["indexes"]]
    name = "default" if "default" in names else next(iter(names), None)
    requests: dict[str, list[Mapping[str, Any]]] = {"embed": [{"inputs": text} for text in texts]}
    if name is not None:
        requests["search"] = [{"queries": text, "k": 5, "index": name} for text in texts]
    for operation, bodies in requests.items():
        encoded = [json.dumps(body).encode() for body in bodies]
        for connections in (1, 64):
            load = wrk.Load(f"{url}/{operation}", encoded, connections)
            yield load_trial(f"{operation}, {connections} connection{'s' * (connections > 1)}", "service", load)


def about_service(url: str) -> dict[str, str]:
    """What is measured: the service's model, engine, workers and indexes."""
    info = _get(f"{url}/info")
    indexes = ", ".join(f"{name} ({about['count']:,} documents)" for name, about in info["indexes"].items())
    return {
        "service": f"{url}, Shoal {info['version']}",
        "model": f"{info['model']}, {info['engine']} {info['precision']}",
        "workers": str(info["workers_alive"]),
        "indexes": indexes or "none",
    }


def check_texts(texts: Sequence[str]) -> list[str]:
    """The texts that can be sent, in order: all but empty ones.

    Raises InvalidRequest if none is left.
    """
    found = [text for text in texts if text.strip()]
    if not found:
        raise InvalidRequest("there are no texts to send: give a file with one text a line")
    return found


def sample() -> list[str]:
    """The headlines that ship with Shoal."""
    spec = find_spec("shoal_workers")  # found, not imported
    folders = (spec and spec.submodule_search_locations) or []
    with (Path(folders[0]) / "sample" / "headlines.csv").open(encoding="utf-8", newline="") as file:
        return [row["headline"] for row in csv.DictReader(file)]


def _run_load(load: wrk.Load, texts_per_request: int, seconds: int, number: int) -> Figures:
    return figures_of(wrk.run(load, seconds, number * STRIDE), texts_per_request)


def _row(scenario: str, trial: Trial, found: Sequence[Figures]) -> Row:
    return Row(scenario, trial.case, trial.target, {name: [run[name] for run in found] for name in found[0]})


def _by_group(figures: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Sequence[float]]]:
    groups: dict[str, dict[str, Sequence[float]]] = {}
    for name, values in figures.items():
        group, colon, column = name.partition(": ")
        groups.setdefault(group if colon else "", {})[column if colon else name] = values
    return groups


def _table(group: str, rows: Sequence[tuple[Row, dict[str, Sequence[float]]]]) -> str:
    columns = list(dict.fromkeys(name for _, figures in rows for name in figures))
    lines = [f"{group}:\n"] if group else []
    lines += [f"| case | target | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for row, figures in rows:
        cells = [_cell(figures[name]) if name in figures else "" for name in columns]
        lines.append(f"| {row.case} | {row.target} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    text = shown(statistics.median(values))
    lowest, highest = shown(min(values)), shown(max(values))
    return text if lowest == highest else f"{text} ({lowest} to {highest})"


def _get(url: str) -> Any:
    try:
        with urlopen(url, timeout=10) as response:  # noqa: S310 - whose address it is named it
            return json.load(response)
    except (URLError, OSError, ValueError) as error:
        raise NotReady(f"{url} is no Shoal that is ready ({error}): start one with `shoal serve`") from error
