"""A thousand connections from one address, with the default settings, and one connection from another address."""

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection, HTTPException
from itertools import cycle
from urllib.parse import urlsplit

import numpy as np

from benchmarks import wrk
from benchmarks.plan import Plan, own_process
from benchmarks.scenarios import case_of
from benchmarks.server import Server, shoal
from benchmarks.trial import Figures, Row, Trial, figures_of

#: The number of connections from one address, and the number with the highest rate.
MANY, USUAL = 1_000, 64

#: The other address. All of 127.0.0.0/8 is loopback.
OTHER = "127.0.0.2"

#: Runs with a thousand connections are longer by this factor, because each connection gets only one answer a second.
LONGER = 2

#: Seconds in which a load opens its connections, before another client begins.
OPENING_S = 2

#: Longest wait for an answer, in seconds.
ANSWER_S = 60.0


def run(plan: Plan) -> list[Row]:
    """Run the loads in turns on one server."""
    other = "1 connection of another address"
    with shoal() as server, own_process() as process:
        process.submit(time.time).result()  # makes the process load its libraries now
        load = server.embed_load(MANY, plan.texts.alone)
        trials = [
            server.embed_trial(f"{case_of(USUAL)} x 1 headline", USUAL, plan.texts.alone),
            Trial(f"{case_of(MANY)} x 1 headline", server.name, partial(_many, server, load)),
            Trial(f"{other}, nothing else", server.name, partial(_other, process, load)),
            Trial(f"{other}, beside {MANY:,}", server.name, partial(_beside, server, process, load)),
        ]
        return plan.interleave("connections", trials) + server.memory_rows("connections")


def _many(server: Server, load: wrk.Load, seconds: int, number: int) -> Figures:
    found = wrk.run(load, LONGER * seconds, number * wrk.STRIDE, may_fail=True)
    server.processes.wait_until_idle()
    return {**figures_of(found, 1), "failed": found.num_failed}


def _other(process: ProcessPoolExecutor, load: wrk.Load, seconds: int, number: int) -> Figures:
    return process.submit(ask_in_turn, load.url, load.bodies, seconds, (number + 1) * wrk.STRIDE).result()


def ask_in_turn(url: str, bodies: Sequence[bytes], seconds: float, first: int) -> Figures:
    """Send requests from the `OTHER` address, one after the other; return their rate and latency."""
    address, first = urlsplit(url), first % len(bodies)
    connection = HTTPConnection(str(address.hostname), address.port, ANSWER_S, (OTHER, 0))
    texts, times_s, num_failed = cycle([*bodies[first:], *bodies[:first]]), list[float](), 0
    started = now = time.perf_counter()
    while now - started < seconds:
        before = now
        try:
            connection.request("POST", address.path, next(texts), {"content-type": "application/json"})
            response = connection.getresponse()
            response.read()
            num_failed += response.status != 200
        except (OSError, HTTPException):
            connection.close()  # the next request opens a new connection
            num_failed += 1
        now = time.perf_counter()
        times_s.append(now - before)
    connection.close()
    percentiles = np.percentile(times_s, (50, 90, 99), method="inverted_cdf") * 1_000
    latency = dict(zip(("p50 ms", "p90 ms", "p99 ms"), percentiles.tolist(), strict=True))
    return {"requests/s": len(times_s) / (now - started), **latency, "failed": num_failed}


def _beside(server: Server, process: ProcessPoolExecutor, load: wrk.Load, seconds: int, number: int) -> Figures:
    seconds *= LONGER
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(wrk.run, load, OPENING_S + seconds + 1, number * wrk.STRIDE, may_fail=True)
        time.sleep(OPENING_S)
        figures = _other(process, load, seconds, number)
    server.processes.wait_until_idle()
    return {**figures, "failed": figures["failed"] + running.result().num_failed}
