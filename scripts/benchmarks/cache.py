"""Texts that repeat: the same thousand headlines again and again, with the cache and without."""

from benchmarks.embed import sent_headlines
from benchmarks.plan import Plan
from benchmarks.server import shoal
from shoal.bench.trial import Row

#: Different texts in the load; the warm-up sends each of them more than once.
NUM_TEXTS = 1_000


def run(plan: Plan) -> list[Row]:
    """Both in turns, each on a server of its own."""
    alone = [[text] for text in sent_headlines(plan)[:NUM_TEXTS]]
    with shoal("cache on", SHOAL_CACHE_MB="64") as cached, shoal("cache off") as plain:
        case = f"64 connections, {NUM_TEXTS:,} texts that repeat"
        return plan.interleave("cache", [server.embed_trial(case, 64, alone) for server in (cached, plain)])
