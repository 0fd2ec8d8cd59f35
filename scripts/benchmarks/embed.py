"""Embedding over HTTP: one headline a request, 32 at a time, texts of all lengths; beside peers and the bare engine."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks import engine
from benchmarks.peers import check
from benchmarks.plan import Plan, precisions, say
from benchmarks.server import Server, peer, shoal
from shoal.bench.trial import Row, Trial

#: Connections that send one headline a request.
CONNECTIONS = (1, 16, 64, 256)

#: Texts of mixed lengths: enough that a run does not come round to the same ones soon.
NUM_MIXED = 3_000

#: The headlines that loads send: those after the ones that are in the index.
SENT = slice(20_000, 60_000)


def run(plan: Plan) -> list[Row]:
    """Every load on Shoal, on Shoal in int8 where it has that, and on every peer, in turns with the bare engine."""
    with ExitStack() as running:
        bare = running.enter_context(engine.bare())
        servers = [running.enter_context(shoal(name, environment=settings)) for name, settings in precisions().items()]
        servers += [running.enter_context(_same_work(name, servers[0], plan)) for name in plan.against]
        loads = zip(*(trials(server, plan) for server in servers), strict=True)
        interleaved = [trial for of_all in loads for trial in of_all]
        of_engine = [*bare.headline_trials(plan.texts), bare.sorted_trial(plan.texts)]
        rows = plan.interleave("embed", [*interleaved, *of_engine])
        return rows + [row for server in servers for row in server.memory_rows("embed")]


@contextmanager
def _same_work(name: str, ours: Server, plan: Plan) -> Iterator[Server]:
    """A peer, whose vectors are those that we make too."""
    texts = plan.texts.headlines[:64]
    with peer(name) as server:
        lowest = check(server.target, texts, ours.target.embed(texts))
        say(f"embed: {name} does the same work: lowest cosine {lowest:.5f}")
        yield server


def trials(server: Server, plan: Plan, connections: Sequence[int] = CONNECTIONS) -> list[Trial]:
    """Return the loads for one server: one headline a request on each number of connections, and the others."""
    headlines = sent_headlines(plan)
    alone = [[text] for text in headlines]
    by_32 = [headlines[n : n + 32] for n in range(0, len(headlines) - 31, 32)]
    mixed = [[text] for text in plan.texts.mixed(NUM_MIXED)]
    return [
        *(server.embed_trial(f"{case_of(number)} x 1 headline", number, alone) for number in connections),
        server.embed_trial("8 connections x 32 headlines", 8, by_32),
        server.embed_trial("64 connections x 1 text of mixed length", 64, mixed),
    ]


def case_of(connections: int) -> str:
    """`1 connection`, `2 connections`."""
    return f"{connections} connection{'s' * (connections > 1)}"


def sent_headlines(plan: Plan) -> Sequence[str]:
    """Headlines to send, none of which is in the index if there are enough."""
    return plan.texts.headlines[SENT] or plan.texts.headlines
