"""The scenarios in which wrk sends requests to servers: embedding, cache, search."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
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

#: The setting that turns the cache on, and the number of texts that repeat: the warm-up sends each more than once.
CACHE, NUM_REPEATED = {"SHOAL_CACHE_MB": "64"}, 1_000

#: Documents in the indexes to search. The first holds real headlines, the others mixtures of their vectors.
SIZES = (20_000, 200_000, 1_000_000)

#: Queries, and hits of each, to compare with exact search.
NUM_QUERIES, K = 100, 10

#: Runs with long texts take this many times as long as others, as they get only a few dozen answers a second.
LONGER = 2

#: Texts of mixed lengths: enough that a run does not come round to the same ones soon.
NUM_MIXED = 3_000


def case_of(connections: int) -> str:
    """Return `1 connection`, `2 connections` and so on."""
    return f"{connections:,} connection{'s' * (connections > 1)}"


def embed(plan: Plan) -> list[Row]:
    """Run every load on Shoal, on Shoal in int8 where it has that, and on every peer, in turns with the bare engine."""
    with ExitStack() as running:
        bare = running.enter_context(engine.bare())
        servers = start_all(plan, running)
        loads = zip(*(embed_trials(server, plan, (1, 16, 64, 256)) for server in servers), strict=True)
        of_engine = [*bare.headline_trials(plan.texts), bare.sorted_trial(plan.texts)]
        rows = plan.interleave("embed", [*chain.from_iterable(loads), *of_engine])
        return rows + [row for server in servers for row in server.memory_rows("embed")]


def beside_peers(plan: Plan) -> list[Row]:
    """Run the loads of the first table of docs/performance.md on Shoal and every peer, beside the bare engine."""
    with ExitStack() as running:
        servers = start_all(plan, running, indexes_of(SIZES[:1], plan.texts))
        loads = sorted(
            (trial for server in servers for trial in _peer_trials(server, plan)), key=lambda each: each.case
        )
        for name, environment in PRECISIONS.items():
            engine_name, precision = name.replace("shoal", "bare engine"), environment.get("SHOAL_PRECISION", "auto")
            bare = running.enter_context(engine.bare(engine_name, precision))
            loads += [trial for trial in bare.headline_trials(plan.texts) if trial.case.startswith(("1 ", "64 "))]
        return plan.interleave("peers", loads) + [row for server in servers for row in server.memory_rows("peers")]


def _peer_trials(server: Server, plan: Plan) -> Iterator[Trial]:
    alone, mixed = plan.texts.alone, [[text] for text in plan.texts.headlines_and_abstracts]
    yield server.embed_trial("64 connections x 1 headline", 64, alone)
    trial = server.embed_trial("64 connections x 1 headline or abstract", 64, mixed)
    yield replace(trial, run=lambda seconds, number: trial.run(LONGER * seconds, number))
    if server.url:  # it is ours
        yield server.embed_trial("1 connection x 1 headline", 1, alone)
        yield server.search_trial(f"1 connection x 1 search of {SIZES[0]:,}", 1, alone, f"n{SIZES[0]}")


def start_all(plan: Plan, running: ExitStack, indexes: Mapping[str, Path] | None = None) -> list[Server]:
    """Return Shoal in each precision, and every peer: each must do the same work as we do."""
    servers = [running.enter_context(shoal(name, indexes, environment=env)) for name, env in PRECISIONS.items()]
    texts = plan.texts.headlines[:64]
    for name in plan.peers:
        servers.append(running.enter_context(peer(name)))
        lowest = check(servers[-1].target, texts, servers[0].target.embed(texts))
        say(f"{name} does the same work: lowest cosine {lowest:.5f}")
    return servers


def embed_trials(server: Server, plan: Plan, connections: Sequence[int]) -> list[Trial]:
    """Return the loads for one server: one headline a request on each number of connections, and the others."""
    alone, headlines = plan.texts.alone, [text for (text,) in plan.texts.alone]
    by_32 = [headlines[n : n + 32] for n in range(0, len(headlines) - 31, 32)]
    mixed = [[text] for text in plan.texts.mixed(NUM_MIXED)]
    return [
        *(server.embed_trial(f"{case_of(number)} x 1 headline", number, alone) for number in connections),
        server.embed_trial("8 connections x 32 headlines", 8, by_32),
        server.embed_trial("64 connections x 1 text of mixed length", 64, mixed),
    ]


def cache(plan: Plan) -> list[Row]:
    """Run the same thousand headlines again and again, with the cache and without."""
    with shoal("cache on", environment=CACHE) as on, shoal("cache off") as off:
        return plan.interleave("cache", [cache_trial(server, plan) for server in (on, off)])


def cache_trial(server: Server, plan: Plan) -> Trial:
    """Return the load of texts that repeat."""
    case = f"64 connections, {NUM_REPEATED:,} texts that repeat"
    return server.embed_trial(case, 64, plan.texts.alone[:NUM_REPEATED])


def search(plan: Plan) -> list[Row]:
    """Search indexes of three sizes in turns, beside 64 connections that embed the same texts."""
    folders = indexes_of(SIZES, plan.texts)
    with shoal(indexes=folders) as server:
        trials = [server.embed_trial("embed, 64 connections", 64, plan.texts.alone)]
        for name, folder in folders.items():
            case = f"search over {name}"
            trials += [server.search_trial(f"{case}, {case_of(n)}", n, plan.texts.alone, name) for n in (1, 64)]
            queries = [text for (text,) in plan.texts.alone]
            trials.append(Trial(f"{case}, hits", server.name, partial(_hits, server, folder, name, queries)))
        return plan.interleave("search", trials) + server.memory_rows("search")


def _hits(server: Server, folder: Path, name: str, queries: Sequence[str], _: int, number: int) -> Figures:
    """Return the share of the exact best hits that are found, and the time of the search step for one query."""
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
