"""The command `shoal bench`: measure a running service."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from shoal.bench.service import check_texts, describe_service, sample, service_trials
from shoal.bench.table import tables
from shoal.bench.trial import interleave
from shoal.cli.options import OutputFile, settings_options, write_output
from shoal.process.address import api_url
from shoal.settings import Settings


@click.command(short_help="Measure the rate and latency of a running service.")
@click.argument("url", required=False)
@click.option("--file", "source", type=click.File("r", encoding="utf-8"), help="Send the lines of this file.")
@click.option(
    "--runs", type=click.IntRange(1), default=3, show_default=True, help="Runs of each load; the loads alternate."
)
@click.option("--seconds", type=click.IntRange(1), default=8, show_default=True, help="Length of a run.")
@click.option("--json", "out", type=OutputFile(), help="Save every figure here.")
@settings_options("host", "port")
def bench(settings: Settings, url: str | None, source: Any, runs: int, seconds: int, out: Path | None) -> None:
    """Measure the running service at URL, or the one on this machine: rate and latency with 1 connection and with 64.

    It embeds and, where there is an index, searches: the headlines that ship with Shoal, one a request. wrk makes the
    load and must be on the PATH.
    """
    address = (url or api_url(settings)).rstrip("/")
    texts = check_texts([line.rstrip("\r\n") for line in source] if source else sample())
    trials = list(service_trials(address, texts))
    about = describe_service(address)
    rows = interleave("bench", trials, runs, seconds, partial(click.echo, err=True))
    click.echo("\n".join(f"{name}: {text}" for name, text in about.items()) + "\n\n" + tables(rows))
    write_output(out, json.dumps({"about": about, "rows": [asdict(row) for row in rows]}, indent=2))
