"""The scenario in which the page's Pool view is open ten times: what that costs the requests of others, and the API."""

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Event

from stack import ask

from benchmarks.plan import Plan
from benchmarks.scenarios import CACHE, NUM_REPEATED
from benchmarks.server import Server, shoal
from shoal.bench.trial import Figures, Row, Trial
from shoal.errors import NotReady
from shoal.viewers.pool_history import EVERY_S

#: Viewers, and connections of the load. With the cache a request costs the API alone, which is what viewers cost.
NUM_VIEWERS, CONNECTIONS = 10, 16

#: Time after which a page asks again how the service is (LOOK_EVERY_MS in main.js), in seconds.
LOOK_EVERY_S = 5.0

#: Seconds to wait after viewers have come, as each gets the history first, and after they have gone, which the server
#: notices only with the next event.
PAUSE_S = EVERY_S + 0.5


def run(plan: Plan) -> list[Row]:
    """Run a load without viewers and with them, in turns, and then nothing but the viewers."""
    with shoal(environment=CACHE) as server:
        load = server.embed_load(CONNECTIONS, plan.texts.alone[:NUM_REPEATED])
        cases: dict[str, Callable[[int, int], Figures]] = {
            f"{CONNECTIONS} connections, {NUM_REPEATED:,} texts that repeat": partial(server.run, load, 1),
            "no load": partial(_rest, server),
        }
        trials = [
            Trial(case, f"{number} viewers", partial(_watched, server, number, measure))
            for case, measure in cases.items()
            for number in (0, NUM_VIEWERS)
        ]
        return plan.interleave("viewers", trials)


def _watched(
    server: Server, num_viewers: int, measure: Callable[[int, int], Figures], seconds: int, number: int
) -> Figures:
    with viewers(server.url, num_viewers):
        return measure(seconds, number)


def _rest(server: Server, seconds: int, _: int) -> Figures:
    """Return the share of a processor that the API takes while nothing is asked."""
    before = server.processes.cpu_s()["api"]
    time.sleep(seconds)
    return {"% of a processor: api": (server.processes.cpu_s()["api"] - before) / seconds * 100}


@contextmanager
def viewers(url: str, number: int) -> Iterator[None]:
    """Ask as `number` pages that show the pool do. Raises NotReady if a stream of its events ended meanwhile."""
    if not number:
        yield
        return
    flags = ["--no-progress-meter", "--fail", "--fail-early", "--no-buffer", "--parallel", "--parallel-immediate"]
    stream = ["--output", "/dev/null", f"{url}/v1/pool/events"]
    gone = Event()
    with ThreadPoolExecutor(1) as looks, subprocess.Popen(["curl", *flags, *number * stream]) as streams:
        looking = looks.submit(_look, f"{url}/info", LOOK_EVERY_S / number, gone)
        try:
            time.sleep(PAUSE_S)
            yield
            if streams.poll() is not None:
                raise NotReady("a viewer of the pool was refused or cut off: its events cost nothing any more")
        finally:
            gone.set()
            streams.terminate()
        looking.result()
    time.sleep(PAUSE_S)


def _look(url: str, every_s: float, gone: Event) -> None:
    """Ask how the service is until the viewers are gone."""
    while not gone.wait(every_s):
        ask(url)
