"""The scenarios in which wrk sends requests to servers: embedding, batching, cache, pool, search, quality."""

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
from stack import DATA, ROOT, datasets, index_of, post

from benchmarks import engine
from benchmarks.indexes import indexes_of
from benchmarks.peers import check
from benchmarks.plan import Plan, precisions, say
from benchmarks.server import Server, peer, shoal
from shoal.bench.trial import Figures, Row, Trial
from shoal_workers.index.index import Index

#: The setting that turns the cache on, and the number of texts that repeat: the warm-up sends each more than once.
CACHE, NUM_REPEATED = {"SHOAL_CACHE_MB": "64"}, 1_000

#: The settings of each way to form batches; the limit of 50 texts is that of the comparison which was published.
BATCHING = {
    "batching on": {"SHOAL_MAX_BATCH_TEXTS": "50"},
    "batching off": {"SHOAL_MAX_BATCH_TEXTS": "1"},
    "window of 100 ms": {"SHOAL_MAX_BATCH_TEXTS": "50", "SHOAL_MAX_BATCH_WAIT_MS": "100"},
}

#: Workers of the pools, their texts a batch, the time of a batch, and the connections: a batch for each of 16 workers,
#: and as much in the queue. 2 texts in 20 ms are 100 a second and worker, which the load and the API can carry.
POOLS, POOL_BATCH, PASS_S, POOL_CONNECTIONS = (1, 2, 4, 8, 16), 2, 0.020, 96

#: Documents in the indexes to search. The first holds real headlines, the others mixtures of their vectors.
SIZES = (20_000, 200_000, 1_000_000)

#: Queries, and hits of each, to compare with exact search.
NUM_QUERIES, K = 100, 10

#: Texts of mixed lengths: enough that a run does not come round to the same ones soon.
NUM_MIXED = 3_000


def case_of(connections: int) -> str:
    """Return `1 connection`, `2 connections` and so on."""
    return f"{connections} connection{'s' * (connections > 1)}"


def embed(plan: Plan) -> list[Row]:
    """Run every load on Shoal, on Shoal in int8 where it has that, and on every peer, in turns with the bare engine."""
    with ExitStack() as running:
        bare = running.enter_context(engine.bare())
        servers = [running.enter_context(shoal(name, environment=env)) for name, env in precisions().items()]
        servers += [running.enter_context(_same_work(name, servers[0], plan)) for name in plan.peers]
        loads = zip(*(embed_trials(server, plan, (1, 16, 64, 256)) for server in servers), strict=True)
        of_engine = [*bare.headline_trials(plan.texts), bare.sorted_trial(plan.texts)]
        rows = plan.interleave("embed", [*chain.from_iterable(loads), *of_engine])
        return rows + [row for server in servers for row in server.memory_rows("embed")]


@contextmanager
def _same_work(name: str, ours: Server, plan: Plan) -> Iterator[Server]:
    """Run a peer, whose vectors must be those that we make too."""
    texts = plan.texts.headlines[:64]
    with peer(name) as server:
        lowest = check(server.target, texts, ours.target.embed(texts))
        say(f"embed: {name} does the same work: lowest cosine {lowest:.5f}")
        yield server


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


def batching(plan: Plan) -> list[Row]:
    """Run forty users as fast as they can: batches as they form, no batches, and a window of 100 ms."""
    with _servers(BATCHING) as servers:
        trials = [server.embed_trial("40 users x 1 headline", 40, plan.texts.alone) for server in servers]
        return plan.interleave("batching", trials)


def cache(plan: Plan) -> list[Row]:
    """Run the same thousand headlines again and again, with the cache and without."""
    with _servers({"cache on": CACHE, "cache off": {}}) as servers:
        return plan.interleave("cache", [cache_trial(server, plan) for server in servers])


def cache_trial(server: Server, plan: Plan) -> Trial:
    """Return the load of texts that repeat."""
    case = f"64 connections, {NUM_REPEATED:,} texts that repeat"
    return server.embed_trial(case, 64, plan.texts.alone[:NUM_REPEATED])


@contextmanager
def _servers(settings: Mapping[str, Mapping[str, str]]) -> Iterator[list[Server]]:
    with ExitStack() as running:
        yield [running.enter_context(shoal(name, environment=env)) for name, env in settings.items()]


def pool(plan: Plan) -> list[Row]:
    """Run pools of workers that wait 20 ms a batch, each with a Redis and an API of its own: what those can carry."""
    batch, worker = {"SHOAL_MAX_BATCH_TEXTS": str(POOL_BATCH)}, waiting_worker(PASS_S)
    with ExitStack() as running:
        started = (shoal(f"{n} worker{'s' * (n > 1)}", None, n, worker, environment=batch) for n in POOLS)
        servers = [running.enter_context(server) for server in started]
        case = f"{POOL_CONNECTIONS} connections, {POOL_BATCH} texts a batch of {PASS_S * 1_000:g} ms"
        # A worker would cut batches of unequal texts, and wait for each part.
        texts = plan.texts.equally_long()
        return plan.interleave("pool", [server.embed_trial(case, POOL_CONNECTIONS, texts) for server in servers])


def waiting_worker(pass_s: float) -> list[str]:
    """Return the command of a worker whose engine only waits."""
    return [sys.executable, str(ROOT / "scripts" / "benchmarks" / "waiting.py"), str(pass_s)]


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
    vectors = np.array(post(f"{server.url}/embed", {"inputs": chosen}), np.float32)
    scores = vectors @ np.asarray(Index.open(folder).vectors).T
    threshold = np.partition(scores, -K, axis=1)[:, -K]
    num_found, times_ms = 0, []
    for n, query in enumerate(chosen):
        body = json.dumps({"queries": query, "k": K, "index": name}).encode()
        with urlopen(Request(f"{server.url}/search", body, {"content-type": "application/json"})) as response:
            timings = dict(part.strip().split(";dur=") for part in response.headers["Server-Timing"].split(","))
            (hits,) = json.load(response)["results"]
        times_ms.append(float(timings["search"]))
        num_found += sum(scores[n, int(hit["id"])] >= threshold[n] - 1e-6 for hit in hits)
    return {f"hits: recall@{K}": num_found / (K * len(chosen)), "hits: step p50 ms": statistics.median(times_ms)}


def quality(plan: Plan) -> list[Row]:
    """Compare vectors and hits in each precision with public judgements and with fp32; once, for nothing is random."""
    if not (DATA / "datasets.py").exists():
        say("quality: the data folder is missing; name it with SHOAL_DATA")
        return []
    from benchmarks import quality  # which imports torch

    measures: dict[str, Callable[[str], Figures]] = {
        "STS-B dev": quality.sts,
        "Cranfield": quality.cranfield,
        **{f"cosine to fp32, {name}": partial(quality.cosines, texts) for name, texts in quality.text_sets().items()},
    }
    rows, index = [], index_of("cranfield", datasets().cranfield()[0])
    for name, environment in precisions().items():
        with shoal(name, {"default": index}, environment=environment) as server:
            for case, measure in measures.items():
                figures = {figure: [value] for figure, value in measure(server.url).items()}
                rows.append(Row("quality", case, name, figures))
    return rows
