"""Texts that repeat: the same thousand headlines again and again, with the cache and without."""

from benchmarks.embed import sent_headlines
from benchmarks.plan import Plan
from benchmarks.server import Server, shoal
from shoal.bench.trial import Row, Trial

#: Different texts in the load; the warm-up sends each of them more than once.
NUM_TEXTS = 1_000


#: The setting that turns the cache on.
CACHE = {"SHOAL_CACHE_MB": "64"}


def run(plan: Plan) -> list[Row]:
    """Both in turns, each on a server of its own."""
    with shoal("cache on", environment=CACHE) as cached, shoal("cache off") as plain:
        return plan.interleave("cache", [trial for server in (cached, plain) for trial in trials(server, plan)])


def trials(server: Server, plan: Plan) -> list[Trial]:
    """Return the load for one server."""
    alone = [[text] for text in sent_headlines(plan)[:NUM_TEXTS]]
    return [server.embed_trial(f"64 connections, {NUM_TEXTS:,} texts that repeat", 64, alone)]
