"""The scenarios with requests from wrk: Shoal and its peers, cache, and search."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from stack import ask

from benchmarks import engine
from benchmarks.indexes import indexes_of
from benchmarks.peers import check
from benchmarks.plan import PRECISIONS, Plan, say
from benchmarks.server import Server, peer, shoal
from benchmarks.trial import Figures, Row, Trial
from shoal_workers.index.index import Index

#: The setting that turns the cache on, and the number of repeated texts: the warm-up sends each more than once.
CACHE, NUM_REPEATED = {"SHOAL_CACHE_MB": "64"}, 1_000

#: Documents in the indexes to search. The first index has real headlines, the others have mixtures of their vectors.
SIZES = (20_000, 200_000, 1_000_000)

#: Number of queries that are compared with exact search, and number of hits for each query.
NUM_QUERIES, K = 100, 10

#: Runs with long texts are longer by this factor, because they get only a few dozen answers a second.
LONGER = 2

#: Number of headlines for the bare engine, and length of its trials as a share of a run; it is soon at full speed.
NUM_ENGINE, ENGINE_SHARE = 4_096, 0.25


def case_of(connections: int) -> str:
    """Return `1 connection`, `2 connections` and so on."""
    return f"{connections:,} connection{'s' * (connections > 1)}"


def beside_peers(plan: Plan) -> list[Row]:
    """Run the loads of docs/performance.md's first table on Shoal, every peer, and the bare engine."""
    indexes, headlines = indexes_of(SIZES[:1], plan.texts), plan.texts.headlines[-NUM_ENGINE:]
    with ExitStack() as running:
        servers = [running.enter_context(shoal(name, indexes, environment=env)) for name, env in PRECISIONS.items()]
        ours = servers[0].target.embed(headlines[:64])
        for name in plan.peers:
            servers.append(running.enter_context(peer(name)))
            lowest = check(servers[-1].target, headlines[:64], ours)
            say(f"{name} does the same work: lowest cosine {lowest:.5f}")
        trials = [trial for server in servers for trial in _peer_trials(server, plan)]
        trials.sort(key=lambda trial: trial.case)
        for name, environment in PRECISIONS.items():
            precision = environment.get("SHOAL_PRECISION", "auto")
            bare = running.enter_context(engine.bare(name.replace("shoal", "bare engine"), precision))
            trials += [bare.trial(f"headlines a pass: {n}", n, headlines, ENGINE_SHARE) for n in (1, 64)]
        return plan.interleave("peers", trials) + [row for server in servers for row in server.memory_rows("peers")]


def _peer_trials(server: Server, plan: Plan) -> Iterator[Trial]:
    alone, mixed = plan.texts.alone, [[text] for text in plan.texts.headlines_and_abstracts]
    yield server.embed_trial("64 connections x 1 headline", 64, alone)
    trial = server.embed_trial("64 connections x 1 headline or abstract", 64, mixed)
    yield replace(trial, run=lambda seconds, number: trial.run(LONGER * seconds, number))
    yield server.embed_trial("1 connection x 1 headline", 1, alone)
    if server.url:  # only Shoal has a URL
        yield server.search_trial(f"1 connection x 1 search of {SIZES[0]:,}", 1, alone, f"n{SIZES[0]}")


def cache(plan: Plan) -> list[Row]:
    """Send the same thousand headlines again and again, with a cache and without one."""
    with shoal("cache on", environment=CACHE) as on, shoal("cache off") as off:
        return plan.interleave("cache", [cache_trial(server, plan) for server in (on, off)])


def cache_trial(server: Server, plan: Plan) -> Trial:
    """Return the trial of repeated texts."""
    case = f"64 connections, {NUM_REPEATED:,} texts that repeat"
    return server.embed_trial(case, 64, plan.texts.alone[:NUM_REPEATED])


def search(plan: Plan) -> list[Row]:
    """Search indexes of three sizes in turns. In further trials, 64 connections embed the same texts."""
    folders = indexes_of(SIZES, plan.texts)
    with shoal(indexes=folders) as server:
        trials = [server.embed_trial("embed, 64 connections", 64, plan.texts.alone)]
        for size, (name, folder) in zip(SIZES, folders.items(), strict=True):
            case = f"search of {size:,}"
            trials += [server.search_trial(f"{case}, {case_of(n)}", n, plan.texts.alone, name) for n in (1, 64)]
            queries = [text for (text,) in plan.texts.alone]
            trials.append(Trial(f"{case}, hits", server.name, partial(_hits, server, folder, name, queries)))
        return plan.interleave("search", trials) + server.memory_rows("search")


def _hits(server: Server, folder: Path, name: str, queries: Sequence[str], _: int, number: int) -> Figures:
    """Return the share of the exact best hits that the service finds, and the time of the search step for a query."""
    chosen = queries[number * NUM_QUERIES :][:NUM_QUERIES] or queries[:NUM_QUERIES]
    scores = server.target.embed(chosen) @ np.asarray(Index.open(folder).vectors).T
    threshold = np.partition(scores, -K, axis=1)[:, -K]
    num_found, times_ms = 0, []
    for n, query in enumerate(chosen):
        response, body = ask(f"{server.url}/search", {"queries": query, "k": K, "index": name})
        timings = dict(part.strip().split(";dur=") for part in response.headers["Server-Timing"].split(","))
        times_ms.append(float(timings["search"]))
        num_found += sum(scores[n, int(hit["id"])] >= threshold[n] - 1e-6 for hit in body["results"][0])
    return {f"hits: recall@{K}": num_found / (K * len(chosen)), "hits: step p50 ms": statistics.median(times_ms)}
