"""Measures the formats of vectors through HTTP, with a stack of its own: docs/experiments.md has what it found."""

import argparse
import gc
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from http.client import HTTPConnection
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from benchmarks import formats, streams, wire
from benchmarks.formats import Format, read_raw
from benchmarks.formats_plot import compared, save
from benchmarks.plan import say
from numpy.typing import NDArray
from stack import about_machine, datasets, stack

from shoal.bench.table import tables
from shoal.bench.trial import Row, interleave, shown

#: Texts whose vectors are compared, and how many of them are queries for the rest.
NUM_COMPARED, NUM_QUERIES = 10_000, 500

#: Texts in one request of that comparison.
_BATCH = 500

#: Texts of a client's turn: from the cache, and computed.
_NUM_CACHED, _NUM_COMPUTED = 4_096, 256

#: Seconds of each run of writing and reading alone.
_SECONDS = 4


def vectors_of(connection: HTTPConnection, texts: Sequence[str], number_type: str) -> NDArray[Any]:
    """Return the vectors of all texts in a number type; int8 ones are restored."""
    way = Format(read_raw, "application/octet-stream", fields={"output_dtype": number_type})
    parts = [way.ask(connection, part) for part in streams.parts(texts, _BATCH)]
    return np.concatenate([read_raw(part) for part in parts])


def _nearest(similarity: NDArray[Any]) -> NDArray[Any]:
    """Return the columns of the 10 largest numbers of each row."""
    return np.argpartition(-similarity, 10, axis=1)[:, :10]


def accuracy(connection: HTTPConnection, texts: Sequence[str], num_queries: int) -> list[Row]:
    """Return the mean and least cosine of restored vectors, and the share of the 10 nearest that are found, by type."""
    exact = vectors_of(connection, texts, "float32")
    expected = _nearest(exact[:num_queries] @ exact[num_queries:].T)
    found = []
    for name in ("float16", "int8", "ubinary"):
        rows = vectors_of(connection, texts, name)
        if name == "ubinary":  # the order of dot products of signs is that of the numbers of equal bits
            rows = np.unpackbits(rows, axis=1)[:, : exact.shape[1]] * 2.0 - 1
        rows = rows.astype(np.float32)
        cosines = (rows * exact).sum(axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(exact, axis=1)
        near = _nearest(rows[:num_queries] @ rows[num_queries:].T)
        share = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(expected.tolist(), near.tolist(), strict=True)])
        figures = {"mean cosine": cosines.mean(), "least cosine": cosines.min(), "of the 10 nearest": share}
        found.append(Row("accuracy", f"{len(texts):,} texts", name, {each: [float(x)] for each, x in figures.items()}))
    return found


def measured(rounds: int) -> Iterator[Row]:
    """Measure all formats and clients with a stack of its own; yield their rows, and those of accuracy."""
    headlines = list(dict.fromkeys(datasets().abc_headlines()))
    known, others = headlines[:_NUM_CACHED], iter(headlines[NUM_COMPARED:])

    def fresh(count: int) -> list[str]:
        if len(texts := list(islice(others, count))) < count:
            sys.exit(f"--rounds {rounds} takes more than {len(headlines):,} headlines: name fewer")
        return texts

    say("writing and reading alone")
    yield from interleave("alone", wire.trials(), rounds, _SECONDS, lambda _: None)
    with stack() as shoal, closing(HTTPConnection(urlsplit(shoal.url).netloc, timeout=300)) as connection:
        say("accuracy")
        yield from accuracy(connection, headlines[:NUM_COMPARED], NUM_QUERIES)
        gc.collect()
        gc.freeze()  # what this program holds is not to be looked at while numbers are read
        say("formats")
        yield from formats.measure("from the cache", connection, lambda size: known[:size], 10 * rounds)
        yield from formats.measure("computed", connection, fresh, rounds)
        say("clients")
        with streams.streams(connection, shoal.url, shoal.redis_url) as clients:
            yield from streams.measure("clients, from the cache", clients, lambda: known, rounds)
            small = {key: client for key, client in clients.items() if "256" not in key[0]}
            yield from streams.measure("clients, computed", small, lambda: fresh(_NUM_COMPUTED), rounds)


def ratios(rows: Sequence[Row]) -> str:
    """Return as Markdown how many times less time than JSON by `json` the others take, beside the reference."""
    lines = ["| | JSON by `orjson` | raw bytes |", "|---|---|---|"]
    for name, (orjson, raw) in compared(rows).items():
        lines.append(f"| {name} | {shown(orjson)} | {shown(raw)} |")
    return "\n".join(lines)


def main() -> None:
    """Print Markdown: the machine, and a table of each measurement."""
    args = arguments()
    if args.read:
        report = json.loads(args.read.read_text())
    else:
        report = {"about": about_machine(), "rows": [asdict(row) for row in measured(args.rounds)]}
    rows = [Row(**row) for row in report["rows"]]
    print("\n".join(f"- {name}: {text}" for name, text in report["about"].items()))
    for scenario in dict.fromkeys(row.scenario for row in rows):
        print(f"\n## {scenario}\n\n{tables(row for row in rows if row.scenario == scenario)}")
    print(f"\n## Times less than JSON by `json`\n\n{ratios(rows)}")
    if args.json and not args.read:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.plot:
        save(rows, args.plot)


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="scripts/formats", description=__doc__)
    rounds = "rounds of each measurement, in turns; ten times as many of formats from the cache"
    parser.add_argument("--rounds", type=int, default=7, help=rounds)
    parser.add_argument("--json", type=Path, help="save every figure here")
    parser.add_argument("--plot", type=Path, help="draw the figures here (.svg or .png)")
    parser.add_argument("--from", dest="read", type=Path, help="measure nothing: print and draw what --json saved")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be over 0")
    return args


if __name__ == "__main__":
    main()
