"""A thousand connections from one address, with the settings as they come, and one from another address beside them."""

import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from functools import partial

import numpy as np

from benchmarks import wrk
from benchmarks.arrivals import generate, percentiles_ms
from benchmarks.plan import Plan, own_process
from benchmarks.scenarios import case_of
from benchmarks.server import Processes, Server, shoal
from benchmarks.trial import Figures, Row, Trial, figures_of

#: The number of connections from one address, beside that at which the rate is highest.
MANY, USUAL = 1_000, 64

#: The other address, which this machine has as well: all of 127.0.0.0/8 is loopback.
OTHER = "127.0.0.2"

#: Runs at a thousand connections take this many times as long as others, as each connection gets one answer a second.
LONGER = 2

#: The first seconds of a load, in which it opens its connections, and the pause between two readings of memory.
OPENING_S, READ_EVERY_S = 2, 0.5


def run(plan: Plan) -> list[Row]:
    """Run the loads in turns on one server."""
    other = "1 connection of another address"
    with shoal() as server, own_process() as process:
        process.submit(percentiles_ms, np.zeros(1)).result()  # it loads its libraries
        load = server.embed_load(MANY, plan.texts.alone)
        trials = [
            server.embed_trial(f"{case_of(USUAL)} x 1 headline", USUAL, plan.texts.alone),
            Trial(f"{case_of(MANY)} x 1 headline", server.name, partial(_many, server, load)),
            Trial(f"{other}, nothing else", server.name, partial(_other, process, load)),
            Trial(f"{other}, beside {MANY:,}", server.name, partial(_beside, server, process, load)),
        ]
        return plan.interleave("connections", trials)


def _many(server: Server, load: wrk.Load, seconds: int, number: int) -> Figures:
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(wrk.run, load, LONGER * seconds, number * wrk.STRIDE, may_fail=True)
        memory_mb = _highest_memory_mb(server.processes, running)
    found = running.result()
    server.processes.wait_until_idle()
    return {**figures_of(found, 1), "failed": found.num_failed, "memory of the API in MB": memory_mb}


def _other(process: ProcessPoolExecutor, load: wrk.Load, seconds: int, number: int) -> Figures:
    ask = process.submit(generate, load.url, load.bodies, seconds, connections=1, seed=number + 1, source=OTHER)
    found = ask.result()
    return {
        "requests/s": len(found.due_s) / seconds,
        **percentiles_ms(found.answered_s - found.due_s),
        "failed": found.num_failed,
    }


def _beside(server: Server, process: ProcessPoolExecutor, load: wrk.Load, seconds: int, number: int) -> Figures:
    seconds *= LONGER
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(wrk.run, load, OPENING_S + seconds + 1, number * wrk.STRIDE, may_fail=True)
        time.sleep(OPENING_S)
        figures = _other(process, load, seconds, number)
    server.processes.wait_until_idle()
    return {**figures, "failed": figures["failed"] + running.result().num_failed}


def _highest_memory_mb(processes: Processes, running: "Future[wrk.Measured]") -> float:
    """Return the highest resident memory of all processes of the API together while a load runs."""
    highest = 0.0
    while not running.done():
        sizes = processes.memory_mb()
        highest = max(highest, sum(of["resident"] for name, of in sizes.items() if name.startswith("api")))
        wait([running], READ_EVERY_S)
    return highest
