"""What a person waits for while the bulk lane is never empty, and what that costs the bulk work."""

import threading
import time
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from types import TracebackType
from typing import Self

from baselines.peers import Target
from running import stack

from benchmarks.embed import sent_headlines
from benchmarks.plan import Plan
from benchmarks.processes import Processes
from benchmarks.server import NO_CACHE, Server
from shoal import Client
from shoal.bench import wrk
from shoal.bench.trial import STRIDE, Figures, Row, Trial, figures_of
from shoal.settings import Settings

#: Jobs that the bulk client has on their way: two for the worker's step, two that wait. With more, texts, which are
#: counted in their order, would come in bursts longer than a run.
WINDOW = 4


def run(plan: Plan) -> list[Row]:
    """Interactive work alone, bulk work alone, and both, in turns on one server."""
    alone = [[text] for text in sent_headlines(plan)]
    with stack({}, 1, **NO_CACHE) as running:
        target, processes = Target("shoal", f"{running.url}/embed"), Processes(running.processes)
        server = Server(target, processes, running.url)
        load = wrk.Load(target.url, [target.body(texts) for texts in alone], connections=1)
        person = "1 connection x 1 headline"
        trials = [server.embed_trial(f"{person}, nothing else", 1, alone)]
        for kind, texts in {"headlines": sent_headlines(plan)[::-1], "abstracts": plan.texts.abstracts}.items():
            trials += [
                Trial(f"bulk {kind}, nothing else", "shoal", partial(_alone, server, running.settings, texts)),
                Trial(
                    f"{person}, beside bulk {kind}", "shoal", partial(_beside, server, running.settings, texts, load)
                ),
            ]
        return plan.interleave("fair", trials)


class Bulk:
    """Texts that a client embeds in the bulk lane, one after the other, from the beginning of a `with` to its end."""

    def __init__(self, settings: Settings, texts: Sequence[str]):
        self._settings = settings
        self._texts = texts
        self._num_done = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._num_done and self._thread.is_alive():
            time.sleep(0.01)
        self._started_s, self._num_before = time.monotonic(), self._num_done
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def texts_per_s(self) -> float:
        """How many a second so far."""
        return (self._num_done - self._num_before) / (time.monotonic() - self._started_s)

    def _run(self) -> None:
        settings = self._settings
        with Client(settings.redis_url, key_prefix=settings.key_prefix, pool=settings.pool, timeout_s=120) as client:
            for _ in client.embed_stream(cycle(self._texts), window=WINDOW):
                self._num_done += 1
                if self._stopping.is_set():
                    return


def _alone(server: Server, settings: Settings, texts: Sequence[str], seconds: int, _: int) -> Figures:
    with Bulk(settings, texts) as bulk:
        time.sleep(seconds)
        rate = bulk.texts_per_s
    server.processes.wait_until_idle()
    return {"bulk texts/s": rate}


def _beside(server: Server, settings: Settings, texts: Sequence[str], load: wrk.Load, *run: int) -> Figures:
    seconds, number = run
    with Bulk(settings, texts) as bulk:
        figures = figures_of(wrk.run(load, seconds, number * STRIDE), 1)
        rate = bulk.texts_per_s
    server.processes.wait_until_idle()
    return {**figures, "bulk texts/s": rate}
