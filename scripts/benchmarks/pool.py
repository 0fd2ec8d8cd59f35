"""The pool without an engine: workers that wait 20 ms a batch, to see what the queue and the API can carry."""

import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks import waiting
from benchmarks.plan import Plan
from benchmarks.server import shoal
from benchmarks.texts import Texts
from shoal.bench.trial import Row

WORKERS = (1, 2, 4, 8, 16)

#: Texts a batch. With `waiting.PASS_S` this is what one worker can do, and 16 of them must stay within what the load
#: generator and the API can do on the same processors: 2 texts in 20 ms are 100 a second, 16 workers 1,600.
BATCH = 2

#: Connections that keep 16 workers busy: a batch for each, and as much in the queue.
CONNECTIONS = 96


def run(plan: Plan) -> list[Row]:
    """Pools of all sizes in turns, each with a Redis and an API of its own."""
    alone = [[text] for text in equally_long(plan.texts)]
    command = [sys.executable, str(Path(waiting.__file__))]
    with ExitStack() as running:
        servers = [
            running.enter_context(
                shoal(f"{n} worker{'s' * (n > 1)}", None, n, command, environment={"SHOAL_MAX_BATCH_TEXTS": str(BATCH)})
            )
            for n in WORKERS
        ]
        case = f"{CONNECTIONS} connections, {BATCH} texts a batch of {waiting.PASS_S * 1_000:g} ms"
        trials = [server.embed_trial(case, CONNECTIONS, alone) for server in servers]
        return plan.interleave("pool", trials)


def equally_long(texts: Texts) -> list[str]:
    """Headlines of as many words as most have: a worker would cut batches of unequal texts, and wait for each part."""
    lengths = [len(text.split()) for text in texts.headlines]
    usual = max(set(lengths), key=lengths.count)
    return [text for text, length in zip(texts.headlines, lengths, strict=True) if length == usual]
