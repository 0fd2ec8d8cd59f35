"""The rate before and after `kill -9` of the only worker under load: the one that follows must be as fast."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from stack import READY_WITHIN_S, ask, stack

from benchmarks import wrk
from benchmarks.peers import Target
from benchmarks.plan import Plan
from benchmarks.server import NO_CACHE, Processes, Server
from benchmarks.trial import Figures, Row, Trial
from shoal.errors import NotReady

#: Seconds of the load that do not count: before each measurement, and while the worker is killed.
SETTLING_S, KILLING_S = 3, 6

#: Time between two requests for an embedding.
ASK_EVERY_S = 0.05


def run(plan: Plan) -> list[Row]:
    """Run a service of its own for each kill: what one restart leaves behind must not hide the next one's."""
    return plan.interleave("restart", [Trial("64 connections x 1 headline", "shoal", partial(_run, plan))])


def _run(plan: Plan, seconds: int, number: int) -> Figures:
    with stack(environment=NO_CACHE) as running:
        load = Server(Target("shoal", f"{running.url}/embed"), Processes({})).embed_load(64, plan.texts.alone)
        before, threads = _settled(load, seconds, number), _threads(running.url)
        with ThreadPoolExecutor(1) as thread:
            under_load = thread.submit(wrk.run, load, KILLING_S, number * wrk.STRIDE, may_fail=True)
            time.sleep(1)
            os.kill(running.processes["worker 1"], signal.SIGKILL)
            back_s = _wait_for_answer(running.url)
        after = _settled(load, seconds, number)
        return {
            "after, over before": after / before,
            "back within s": back_s,
            "failed meanwhile": under_load.result().num_failed,
            "before: requests/s": before,
            "before: threads": threads,
            "after: requests/s": after,
            "after: threads": _threads(running.url),
        }


def _settled(load: wrk.Load, seconds: int, number: int) -> float:
    """Return the rate of a load that has run for a while."""
    wrk.run(load, SETTLING_S, number * wrk.STRIDE)
    return wrk.run(load, seconds, number * wrk.STRIDE).requests_per_s


def _threads(url: str) -> int:
    """Return the compute threads of the workers that are alive."""
    return sum(about["threads"] for about in ask(f"{url}/info")[1]["workers"])


def _wait_for_answer(url: str) -> float:
    """Return the seconds until a text is embedded. Raises NotReady if that takes too long."""
    started_s = time.monotonic()
    while (passed_s := time.monotonic() - started_s) < READY_WITHIN_S:
        with suppress(OSError):
            ask(f"{url}/embed", {"inputs": "is it ready?"}, READY_WITHIN_S)
            return time.monotonic() - started_s
        time.sleep(ASK_EVERY_S)
    raise NotReady(f"nothing was embedded within {passed_s:.0f} s after the worker was killed")
