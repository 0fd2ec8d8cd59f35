"""Measures Shoal, and peers beside it in the same run: docs/performance.md says what it found."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import (
    bars,
    batching,
    cache,
    compare,
    embed,
    engine,
    fair,
    open_loop,
    plot,
    pool,
    quality,
    search,
    soak,
    start,
    wire,
)
from benchmarks.peers import PEERS, target_of
from benchmarks.plan import Plan, say
from benchmarks.results import Results
from benchmarks.texts import load_texts
from stack import Checkout, about_machine

from shoal.bench import wrk
from shoal.bench.table import tables
from shoal.bench.trial import Row
from shoal.errors import ShoalError

#: What can be measured, in this order; each prints a table.
SCENARIOS: dict[str, Callable[[Plan], list[Row]]] = {
    "engine": engine.run,
    "embed": embed.run,
    "search": search.run,
    "wire": wire.run,
    "batching": batching.run,
    "open": open_loop.run,
    "fair": fair.run,
    "pool": pool.run,
    "cache": cache.run,
    "start": start.run,
    "quality": quality.run,
    "soak": soak.run,
    "compare": compare.run,
}


def main() -> None:
    """Prints Markdown: the machine, a table for each scenario, and the numbers to reach."""
    args = arguments()
    report = json.loads(args.read.read_text()) if args.read else measured(args)
    results = Results(Row(**row) for row in report["rows"])
    print(document(report["about"], results))
    if args.json and not args.read:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.plot and not plot.save(results, args.plot):
        print("nothing to plot was measured", file=sys.stderr)
    if report["failed"]:
        sys.exit(f"could not be measured: {'; '.join(report['failed'])}: the lines above say why")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all without one")
    parser.add_argument(
        "--against",
        default="",
        help="peers beside us: baseline, infinity, tei+http://…, openai+http://…, or folders of other checkouts",
    )
    parser.add_argument("--workers", type=int, default=1, help="workers of each server in the scenario compare")
    parser.add_argument("--runs", type=int, default=3, help="runs of each trial, in turns, after a warm-up")
    parser.add_argument("--seconds", type=int, default=8, help="length of a run")
    parser.add_argument("--minutes", type=float, default=10, help="length of the soak")
    parser.add_argument("--json", type=Path, help="save every figure here")
    parser.add_argument("--plot", type=Path, help="draw the figures here (.svg or .png)")
    parser.add_argument("--from", dest="read", type=Path, help="measure nothing: print and draw what --json saved")
    args = parser.parse_args()
    if unknown := [name for name in args.scenarios if name not in SCENARIOS]:
        parser.error(f"there is no scenario {unknown[0]!r}: choose of {', '.join(SCENARIOS)}")
    if min(args.runs, args.seconds) < 1 or args.minutes <= 0:
        parser.error("--runs, --seconds and --minutes must be over 0")
    against = [name for name in args.against.split(",") if name]
    args.against = [name for name in against if "/" not in name or "://" in name]
    try:
        args.checkouts = [Checkout.at(Path(name)) for name in against if name not in args.against]
        for name in args.against:
            _ = name in PEERS or target_of(name)
    except ShoalError as error:
        parser.error(error.message)
    return args


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the scenarios; one that cannot be measured does not keep the others from it."""
    try:
        wrk.find()
    except ShoalError as error:
        sys.exit(error.message)
    texts = load_texts()
    plan = Plan(texts, args.runs, args.seconds, args.minutes, args.against, args.checkouts, args.workers)
    command = f"scripts/bench {shlex.join(sys.argv[1:])}".strip()
    about = {**about_machine(), "texts": texts.source, "command": command}
    rows = []
    for name in args.scenarios or (name for name in SCENARIOS if name != "compare" or args.checkouts):
        try:
            rows += SCENARIOS[name](plan)
        except (ShoalError, OSError) as error:
            say(f"{name}: {error}")
            plan.failed.append(name)
    return {"about": about, "rows": [asdict(row) for row in rows], "failed": plan.failed}


def document(about: dict[str, str], results: Results) -> str:
    """Everything as Markdown."""
    parts = ["\n".join(f"- {name}: {text}" for name, text in about.items())]
    for scenario in dict.fromkeys(row.scenario for row in results.rows):
        rows = [row for row in results.rows if row.scenario == scenario]
        parts.append(f"## {scenario}\n\n{tables(rows)}")
    parts += [f"## Ours over theirs\n\n{ratios}"] if (ratios := compare.ratios(results.rows)) else []
    parts += [f"## Numbers to reach\n\n{reached}"] if (reached := bars.table(results)) else []
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
