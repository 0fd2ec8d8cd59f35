"""Measures Shoal and its peers in the same run. docs/performance.md has the results."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import plot
from benchmarks import compare, connections, fair, quality, scenarios, wrk
from benchmarks.one_core import encoders, models
from benchmarks.peers import PEERS, target_of
from benchmarks.plan import Plan, Texts, say
from benchmarks.trial import Row, tables
from stack import Checkout, about_machine

from shoal.errors import ShoalError

#: The scenarios in the order of their runs. Each prints a table.
SCENARIOS: dict[str, Callable[[Plan], list[Row]]] = {
    "peers": scenarios.beside_peers,
    "search": scenarios.search,
    "fair": fair.run,
    "connections": connections.run,
    "cache": scenarios.cache,
    "quality": quality.run,
    "compare": compare.run,
    "encoders": encoders.run,
    "models": models.run,
}

#: Scenarios that run only when they are named.
ON_DEMAND = ("compare", "encoders", "models")


def main() -> None:
    """Print Markdown: the machine, and a table for each scenario."""
    args = arguments()
    report = json.loads(args.read.read_text()) if args.read else measured(args)
    rows = [Row(**row) for row in report["rows"]]
    print(document(report["about"], rows))
    if args.json and not args.read:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.plot and not plot.save(rows, args.plot):
        print("nothing to plot was measured", file=sys.stderr)
    if report["failed"]:
        sys.exit(f"could not be measured: {'; '.join(report['failed'])}: the lines above say why")


def arguments() -> argparse.Namespace:
    """Return the parsed arguments of the command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    known = f"{', '.join(SCENARIOS)}; default: all except {', '.join(ON_DEMAND)}"
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=known)
    against = "peers to compare with: baseline, infinity, tei+http://…, openai+http://…; or folders of other checkouts"
    parser.add_argument("--against", default="", help=against)
    parser.add_argument("--runs", type=int, default=3, help="runs of each trial, in turns, after a warm-up")
    parser.add_argument("--seconds", type=int, default=8, help="length of a run")
    parser.add_argument("--workers", type=int, default=1, help="workers of each server in the scenario compare")
    parser.add_argument("--json", type=Path, help="save every figure here")
    parser.add_argument("--plot", type=Path, help="draw the figures here (.svg or .png)")
    parser.add_argument("--from", dest="read", type=Path, help="print and draw what --json saved")
    args = parser.parse_args()
    if unknown := [name for name in args.scenarios if name not in SCENARIOS]:
        parser.error(f"there is no scenario {unknown[0]!r}: choose from {', '.join(SCENARIOS)}")
    if min(args.runs, args.seconds, args.workers) < 1:
        parser.error("--runs, --seconds and --workers must be over 0")
    named = [name for name in args.against.split(",") if name]
    args.peers = [name for name in named if "/" not in name or "://" in name]
    try:
        _ = args.read or wrk.find()
        args.checkouts = [Checkout.at(Path(name)) for name in named if name not in args.peers]
        for name in args.peers:
            _ = name in PEERS or target_of(name)
    except ShoalError as error:
        parser.error(error.message)
    return args


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Run the scenarios. If a scenario cannot be measured, run the others."""
    texts = Texts.load()
    plan = Plan(texts, args.runs, args.seconds, args.peers, args.checkouts, args.workers)
    command = f"scripts/bench {shlex.join(sys.argv[1:])}".strip()
    about = {**about_machine(), "texts": texts.source, "command": command}
    rows = []
    usual = [name for name in SCENARIOS if name not in ON_DEMAND]
    for name in args.scenarios or [*usual, *(["compare"] if plan.checkouts else [])]:
        try:
            rows += SCENARIOS[name](plan)
        except (ShoalError, OSError, BrokenExecutor) as error:
            say(f"{name}: {error}")
            plan.failed.append(name)
    return {"about": about, "rows": [asdict(row) for row in rows], "failed": plan.failed}


def document(about: dict[str, str], rows: Sequence[Row]) -> str:
    """Return the machine and the tables as Markdown."""
    sections = {
        name: tables(row for row in rows if row.scenario == name) for name in dict.fromkeys(r.scenario for r in rows)
    }
    sections |= {"Ours over theirs": compare.ratios(rows)}
    parts = [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    return "\n\n".join(["\n".join(f"- {name}: {text}" for name, text in about.items()), *parts])


if __name__ == "__main__":
    main()
