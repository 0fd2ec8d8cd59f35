"""Searching over HTTP in indexes of three sizes, beside embedding by the same server."""

import json
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from stack import post

from benchmarks.embed import case_of, sent_headlines
from benchmarks.indexes import indexes_of
from benchmarks.plan import Plan
from benchmarks.server import Server, shoal
from shoal.bench.trial import Figures, Row, Trial
from shoal_workers.index.index import Index

#: Documents in the indexes. The first holds real headlines, the others mixtures of their vectors.
SIZES = (20_000, 200_000, 1_000_000)

CONNECTIONS = (1, 64)

#: Queries, and hits of each, to compare with exact search.
NUM_QUERIES, K = 100, 10


def run(plan: Plan) -> list[Row]:
    """All sizes in turns, and 64 connections that embed the same texts."""
    folders = indexes_of(SIZES, plan.texts)
    queries = sent_headlines(plan)
    with shoal(indexes=folders) as server:
        trials = [server.embed_trial("embed, 64 connections", 64, [[text] for text in queries])]
        for name, folder in folders.items():
            case = f"search over {name}"
            trials += [
                server.search_trial(f"{case}, {case_of(connections)}", connections, queries, name)
                for connections in CONNECTIONS
            ]
            trials.append(Trial(f"{case}, hits", server.name, partial(_hits, server, folder, name, queries)))
        return plan.interleave("search", trials) + server.memory_rows("search")


def _hits(server: Server, folder: Path, name: str, queries: Sequence[str], _: int, number: int) -> Figures:
    """How many of the exact best hits are found, and how long the search itself takes for one query at a time."""
    chosen = queries[number * NUM_QUERIES :][:NUM_QUERIES] or queries[:NUM_QUERIES]
    vectors = np.array(post(f"{server.url}/embed", {"inputs": chosen}), np.float32)
    scores = vectors @ np.asarray(Index.open(folder).vectors).T
    threshold = np.partition(scores, -K, axis=1)[:, -K]
    num_found, times_ms = 0, []
    for n, query in enumerate(chosen):
        hits, search_ms = _search(f"{server.url}/search", {"queries": query, "k": K, "index": name})
        times_ms.append(search_ms)
        num_found += sum(scores[n, int(hit["id"])] >= threshold[n] - 1e-6 for hit in hits)
    return {
        f"hits: recall@{K}": num_found / (K * len(chosen)),
        "hits: step p50 ms": statistics.median(times_ms),
    }


def _search(url: str, body: dict[str, object]) -> tuple[list[dict[str, Any]], float]:
    """The hits, and the milliseconds that the worker says the search took."""
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=60) as response:
        timings = dict(part.strip().split(";dur=") for part in response.headers["Server-Timing"].split(","))
        return json.load(response)["results"][0], float(timings["search"])
