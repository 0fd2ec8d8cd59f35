"""Forty users as fast as they can: batches as they form, against none, against a window of 100 ms."""

from contextlib import ExitStack

from benchmarks.embed import sent_headlines
from benchmarks.plan import Plan
from benchmarks.server import shoal
from shoal.bench.trial import Row

USERS = 40

#: The settings of each way; the limit of 50 texts is that of the comparison which was published.
WAYS = {
    "batching on": {"SHOAL_MAX_BATCH_TEXTS": "50"},
    "batching off": {"SHOAL_MAX_BATCH_TEXTS": "1"},
    "window of 100 ms": {"SHOAL_MAX_BATCH_TEXTS": "50", "SHOAL_MAX_BATCH_WAIT_MS": "100"},
}


def run(plan: Plan) -> list[Row]:
    """The ways in turns, each on a server of its own."""
    alone = [[text] for text in sent_headlines(plan)]
    with ExitStack() as running:
        servers = [running.enter_context(shoal(name, environment=settings)) for name, settings in WAYS.items()]
        trials = [server.embed_trial(f"{USERS} users x 1 headline", USERS, alone) for server in servers]
        return plan.interleave("batching", trials)
