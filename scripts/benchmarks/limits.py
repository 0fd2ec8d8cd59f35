"""The service beside the limit of the machine, its own engine and its peers: shares that mean the same everywhere."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from sizing import Costs, Layout, rate

from benchmarks import engine
from benchmarks.indexes import indexes_of
from benchmarks.matrix import Lengths, limit_trial
from benchmarks.plan import PRECISIONS, Plan
from benchmarks.scenarios import case_of, start_all
from benchmarks.server import Server
from shoal.bench.trial import Figures, Row, Trial
from shoal_workers.process import processors

#: Connections of each load, and headlines in a forward pass of the bare engine.
MANY = 64

#: Documents in the index to search.
SIZE = 20_000

#: Runs with long texts take this many times as long as others, as they get only a few dozen answers a second.
LONGER = 2


def run(plan: Plan) -> list[Row]:
    """Run the limit, the bare engine and the servers in turns."""
    headlines = [text for (text,) in plan.texts.alone]
    lengths = Lengths.of(headlines)
    usual = headlines[lengths.usual(MANY)]
    with ExitStack() as running:
        servers = start_all(plan, running, indexes_of((SIZE,), plan.texts))  # which prepares the model
        trials = []
        for name, environment in PRECISIONS.items():
            precision, suffix = environment.get("SHOAL_PRECISION", "auto"), name.removeprefix("shoal")
            limit = limit_trial("matrix products", f"machine{suffix}", precision, lengths.operations)
            trials.append(running.enter_context(limit))
            bare = running.enter_context(engine.bare(f"bare engine{suffix}", precision))
            trials.append(bare.same_trial(f"the same {MANY} headlines each pass", usual))
            trials += [trial for trial in bare.headline_trials(plan.texts) if trial.case.startswith(("1 ", f"{MANY} "))]
        trials += sorted((trial for server in servers for trial in _trials(server, plan)), key=lambda trial: trial.case)
        rows = [*plan.interleave("limits", trials), _predicted()]
        return rows + [row for server in servers for row in server.memory_rows("limits")]


def _predicted() -> Row:
    """Return the rate that the simulation of larger machines (docs/experiments.md) gives for this one, in bf16."""
    threads = processors.threads_for(1, processors.available())
    layout = Layout(threads, api_processes=1, workers=1, threads=threads)
    figures = {"requests/s": [rate(Costs(), layout, MANY)]}
    return Row("limits", f"{case_of(MANY)} x 1 headline", "shoal, predicted", figures)


def _trials(server: Server, plan: Plan) -> Iterator[Trial]:
    alone, mixed = plan.texts.alone, [[text] for text in plan.texts.headlines_and_abstracts]
    yield server.embed_trial(f"{case_of(MANY)} x 1 headline", MANY, alone)
    trial = server.embed_trial(f"{case_of(MANY)} x 1 headline or abstract", MANY, mixed)
    yield replace(trial, run=partial(_longer, trial))
    if server.url:  # it is ours
        yield server.embed_trial(f"{case_of(1)} x 1 headline", 1, alone)
        yield server.search_trial(f"{case_of(1)} x 1 search of {SIZE:,}", 1, alone, f"n{SIZE}")


def _longer(trial: Trial, seconds: int, number: int) -> Figures:
    return trial.run(LONGER * seconds, number)
