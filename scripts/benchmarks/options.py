"""Searches by words, with filters and with other options, beside plain ones of the same index."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stack import HOME, OURS, model

from benchmarks.indexes import NUM_REAL, Maker, real_index
from benchmarks.plan import Plan, Texts, say
from benchmarks.scenarios import case_of
from benchmarks.server import Server, shoal
from shoal.bench.trial import Row, Trial
from shoal.records.source import Source
from shoal_workers.index.build.builder import build
from shoal_workers.index.index import Index

#: Documents of the two indexes, and connections of the loads on the first one; the other has one connection.
SMALL, LARGE, CONNECTIONS = 20_000, 1_000_000, (1, 64)

#: Fields of the documents, each with its number of distinct values, which documents have in turns.
FIELDS = {"hundredth": 100, "thousandth": 1_000, "ten_thousandth": 10_000}

#: The options of each case that is measured on both indexes.
CASES: dict[str, dict[str, Any]] = {
    "dense": {},
    "lexical": {"mode": "lexical"},
    "hybrid": {"mode": "hybrid"},
    "1 % left": {"filter": {"hundredth": 7}},
    "0.1 % left": {"filter": {"thousandth": 7}},
    "0.01 % left": {"filter": {"ten_thousandth": 7}},
    "hybrid, 1 % left": {"mode": "hybrid", "filter": {"hundredth": 7}},
    "sort": {"sort": [{"field": "ten_thousandth"}]},
    "sort, least score": {"sort": [{"field": "ten_thousandth"}], "min_score": 0.3},
    "boost": {"boost": [{"field": "hundredth", "weight": 0.1}]},
    "facets": {"facets": ["hundredth"]},
    "groups of 3": {"group_by": "ten_thousandth", "group_size": 3},
    "diversity": {"diversity": 0.3},
    "snippet": {"snippet": {}},
}


def run(plan: Plan) -> list[Row]:
    """Run all cases in turns, on an index of headlines with one connection and with many, and on a large one."""
    real, queries = real_index(plan.texts), plan.texts.alone
    folders = {f"f{size}": _with_fields(size, plan.texts, real) for size in (SMALL, LARGE)}
    with shoal(indexes=folders) as server:
        loads = [(SMALL, connections) for connections in CONNECTIONS] + [(LARGE, 1)]
        trials = [_trial(server, name, size, number, queries) for size, number in loads for name in CASES]
        return plan.interleave("options", trials) + server.memory_rows("options")


def _trial(server: Server, name: str, size: int, connections: int, queries: list[list[str]]) -> Trial:
    case = f"{name} over {size:,}, {case_of(connections)}"
    return server.search_trial(case, connections, queries, f"f{size}", CASES[name])


def _with_fields(count: int, texts: Texts, real: Path) -> Path:
    """Return an index of headlines, again and again, with made vectors and fields; build it if it is missing."""
    folder = HOME / "bench" / f"fields-{count}-{model().digest[:8]}"
    if not OURS.can_serve(folder):
        say(f"making an index of {count:,} documents with fields in {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "source.jsonl"
        with source.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(document) + "\n" for document in _documents(count, texts.headlines[:NUM_REAL]))
        build(Source(source), folder, Maker("mixtures", np.asarray(Index.open(real).vectors)), language="english")
    return folder


def _documents(count: int, headlines: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the documents; `Maker` reads the number at the end of a text."""
    for n in range(count):
        fields = {name: n % num_values for name, num_values in FIELDS.items()}
        yield {"id": n, "text": f"{headlines[n % len(headlines)]} {n}", **fields}
