"""This checkout beside others, in turns: the same loads on each, and the ratios of the medians."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack

from stack import OURS, Checkout, index_of

from benchmarks import cache, embed, fair
from benchmarks.indexes import NUM_REAL
from benchmarks.plan import Plan, say
from benchmarks.server import NO_CACHE, Server, shoal
from shoal.bench.trial import Row, Trial, shown

#: Figures of which a lower value is better; of the others a higher one is.
_LOWER = ("p50 ms", "p99 ms", "processor ms a request: api", "processor ms a request: worker")
_HIGHER = ("requests/s", "bulk texts/s")


def run(plan: Plan) -> list[Row]:
    """Every load on every checkout: each runs with a cache and without one, both with an index of real headlines."""
    if not plan.checkouts:
        say("compare: name a checkout with --against FOLDER")
        return []
    with ExitStack() as running:
        servers = [
            [running.enter_context(server) for server in _servers(plan, checkout)]
            for checkout in (OURS, *plan.checkouts)
        ]
        by_server = [[*_trials(plain, plan), *cache.trials(cached, plan)] for plain, cached in servers]
        rows = plan.interleave("compare", [trial for of_load in zip(*by_server, strict=True) for trial in of_load])
        return rows + [row for plain, _ in servers for row in plain.memory_rows("compare")]


def _servers(plan: Plan, checkout: Checkout) -> Iterator[AbstractContextManager[Server]]:
    headlines = plan.texts.headlines[:NUM_REAL]
    index = index_of(f"headlines-{len(headlines)}", {str(n): text for n, text in enumerate(headlines)}, checkout)
    for environment in (NO_CACHE, cache.CACHE):
        yield shoal(checkout.name, {"default": index}, plan.workers, checkout=checkout, environment=environment)


def _trials(server: Server, plan: Plan) -> list[Trial]:
    queries = embed.sent_headlines(plan)
    return [
        *embed.trials(server, plan, (1, 64)),
        *(server.search_trial(f"search, {embed.case_of(n)}", n, queries, "default") for n in (1, 64)),
        *fair.trials(server, plan)[1:],
    ]


def ratios(rows: Sequence[Row]) -> str:
    """The medians of this checkout over those of each other one as Markdown, or nothing if none was compared."""
    ours = {row.case: row for row in rows if row.scenario == "compare" and row.target == OURS.name}
    lines = []
    for row in rows:
        if row.scenario == "compare" and row.target != OURS.name and row.case in ours:
            for name in (*_HIGHER, *_LOWER):
                if name in row.figures:
                    new, old = ours[row.case].median(name), row.median(name)
                    better = "higher" if name in _HIGHER else "lower"
                    lines.append(
                        f"| {row.case} | {name} ({better} is better) | {row.target} | {shown(old)} | {shown(new)} "
                        f"| {new / old if old else float('nan'):.3f} |"
                    )
    head = "| case | figure | checkout | its median | ours | ours / its |\n|---|---|---|---|---|---|"
    return "\n".join([head, *lines]) if lines else ""
