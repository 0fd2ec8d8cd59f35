"""The command `shoal bench`: measure a running service."""

import csv
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import click

from shoal.cli import wrk
from shoal.cli.options import settings_options
from shoal.errors import InvalidRequest, NotReady
from shoal.process.address import api_url
from shoal.settings import Settings

#: Connections of the loads: one client alone, and many.
CONNECTIONS = (1, 64)


@click.command(short_help="Measure the rate and latency of a running service.")
@click.argument("url", required=False)
@click.option("--file", "source", type=click.File("r", encoding="utf-8"), help="Send the lines of this file.")
@click.option(
    "--runs", type=click.IntRange(1), default=3, show_default=True, help="Runs of each load; the loads alternate."
)
@click.option("--seconds", type=click.IntRange(1), default=8, show_default=True, help="Length of a run.")
@settings_options("host", "port")
def bench(settings: Settings, url: str | None, source: Any, runs: int, seconds: int) -> None:
    """Measure the running service at URL, or the one on this machine: rate and latency with 1 connection and with 64.

    It embeds and, where there is an index, searches: the headlines that ship with Shoal, one a request. wrk makes the
    load and must be on the PATH.
    """
    address = (url or api_url(settings)).rstrip("/")
    texts = [text for line in (source or sample()) if (text := line.strip())]
    if not texts:
        raise InvalidRequest("there are no texts to send: give a file with one text a line")
    wrk.find()
    _get(f"{address}/ready")
    info = _get(f"{address}/info")
    loads = loads_of(address, texts, [*info["indexes"]])
    found: dict[str, list[wrk.Measured]] = {case: [] for case in loads}
    for number in range(runs + 1):  # the first run warms the service up
        for case, load in loads.items():
            measured = wrk.run(load, seconds if number else 1, number * wrk.STRIDE)
            if number:
                found[case].append(measured)
                click.echo(f"run {number}: {case}: {measured.requests_per_s:,.0f} requests/s", err=True)
    indexes = ", ".join(f"{name} ({about['count']:,} documents)" for name, about in info["indexes"].items())
    click.echo(f"service: {address}, Shoal {info['version']}, {info['workers_alive']} workers")
    click.echo(f"model: {info['model']}, {info['engine']} {info['precision']}")
    click.echo(f"indexes: {indexes or 'none'}\n")
    click.echo("| case | requests/s | p50 ms | p90 ms | p99 ms |\n|---|---|---|---|---|")
    for case, of_case in found.items():
        rows = ((one.requests_per_s, one.p50_ms, one.p90_ms, one.p99_ms) for one in of_case)
        click.echo(f"| {case} | {' | '.join(map(_cell, zip(*rows, strict=True)))} |")


def loads_of(url: str, texts: Sequence[str], indexes: Sequence[str]) -> dict[str, wrk.Load]:
    """Return the loads by their case: embedding and, if there is an index, searching."""
    requests: dict[str, list[dict[str, Any]]] = {"embed": [{"inputs": text} for text in texts]}
    if indexes:
        name = "default" if "default" in indexes else indexes[0]
        requests["search"] = [{"queries": text, "k": 5, "index": name} for text in texts]
    return {
        f"{operation}, {number} connection{'s' * (number > 1)}": wrk.Load(
            f"{url}/{operation}", [json.dumps(body).encode() for body in bodies], number
        )
        for operation, bodies in requests.items()
        for number in CONNECTIONS
    }


def sample() -> list[str]:
    """Return the headlines that ship with Shoal."""
    spec = find_spec("shoal_workers")  # found, not imported
    folders = (spec and spec.submodule_search_locations) or []
    with (Path(folders[0]) / "sample" / "headlines.csv").open(encoding="utf-8", newline="") as file:
        return [row["headline"] for row in csv.DictReader(file)]


def _get(url: str) -> Any:
    try:
        with urlopen(url, timeout=10) as response:  # noqa: S310 - the operator names the address
            return json.load(response)
    except (URLError, OSError, ValueError) as error:
        raise NotReady(f"{url} is no Shoal that is ready ({error}): start one with `shoal serve`") from error


def _cell(values: Sequence[float]) -> str:
    """Return the median, and the lowest and the highest value if there are several."""
    text = f"{median(values):,.1f}"
    return text if len(values) == 1 else f"{text} ({min(values):,.1f} to {max(values):,.1f})"
