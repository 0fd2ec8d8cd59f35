"""A comparison of checkouts: the same loads run on each in turn, and medians are compared."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import chain

from stack import OURS, Checkout

from benchmarks.fair import bulk_trials
from benchmarks.indexes import real_index
from benchmarks.plan import Plan, say
from benchmarks.scenarios import CACHE, cache_trial, case_of
from benchmarks.server import NO_CACHE, Server, shoal
from benchmarks.trial import Row, Trial, shown

#: Number of texts of mixed lengths: enough that none repeats soon.
NUM_MIXED = 3_000

#: Figures to compare, and whether a higher or a lower value of each is better.
_FIGURES = {
    "requests/s": "higher",
    "bulk texts/s": "higher",
    "p50 ms": "lower",
    "p99 ms": "lower",
    "processor ms a request: api": "lower",
    "processor ms a request: worker": "lower",
}


def run(plan: Plan) -> list[Row]:
    """Run every load on every checkout, once with a cache and once without. Each server has an index of headlines."""
    if not plan.checkouts:
        say("compare: name a checkout with --against FOLDER")
        return []
    with ExitStack() as running:
        checkouts = (OURS, *plan.checkouts)
        servers = [[running.enter_context(server) for server in _servers(plan, each)] for each in checkouts]
        by_checkout = [_trials(plain, cached, plan) for plain, cached in servers]
        rows = plan.interleave("compare", [*chain.from_iterable(zip(*by_checkout, strict=True))])
        return rows + [row for plain, _ in servers for row in plain.memory_rows("compare")]


def _servers(plan: Plan, checkout: Checkout) -> Iterator[AbstractContextManager[Server]]:
    index = real_index(plan.texts, checkout)
    for environment in (NO_CACHE, CACHE):
        yield shoal(checkout.name, {"default": index}, plan.workers, checkout=checkout, environment=environment)


def _trials(plain: Server, cached: Server, plan: Plan) -> list[Trial]:
    alone, headlines = plan.texts.alone, [text for (text,) in plan.texts.alone]
    by_32 = [headlines[n : n + 32] for n in range(0, len(headlines) - 31, 32)]
    mixed = [[text] for text in plan.texts.mixed(NUM_MIXED)]
    return [
        *(plain.embed_trial(f"{case_of(n)} x 1 headline", n, alone) for n in (1, 64)),
        plain.embed_trial("8 connections x 32 headlines", 8, by_32),
        plain.embed_trial("64 connections x 1 text of mixed length", 64, mixed),
        *(plain.search_trial(f"search, {case_of(n)}", n, alone, "default") for n in (1, 64)),
        *bulk_trials(plain, plan),
        cache_trial(cached, plan),
    ]


def ratios(rows: Sequence[Row]) -> str:
    """Return a table of this checkout's medians divided by other checkouts' medians; empty without comparisons."""
    compared = [row for row in rows if row.scenario == "compare"]
    ours = {row.case: row for row in compared if row.target == OURS.name}
    lines = [
        f"| {row.case} | {name} ({better} is better) | {row.target} | {shown(old)} | {shown(new)} | {new / old:.3f} |"
        for row in compared
        if row.target != OURS.name and row.case in ours
        for name, better in _FIGURES.items()
        if name in row.figures and (old := row.median(name)) and (new := ours[row.case].median(name))
    ]
    head = "| case | figure | checkout | its median | ours | ours / its |\n|---|---|---|---|---|---|"
    return "\n".join([head, *lines]) if lines else ""
