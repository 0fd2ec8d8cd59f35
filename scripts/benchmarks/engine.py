"""The engine without queue and HTTP, which is the reference for what the service reaches.

Each precision has a process of its own, as in a worker, and waits while another is measured.
"""

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, cycle
from statistics import median
from types import SimpleNamespace
from typing import Any

from stack import NATIVE_THREADS
from threadpoolctl import threadpool_limits

from benchmarks.plan import PRECISIONS, Plan, Texts, own_process
from benchmarks.trial import Figures, Row, Trial
from shoal.contract.options import Options
from shoal.settings import Settings
from shoal_workers.process import processors
from shoal_workers.service.service import open_encoder

#: Headlines in a forward pass, and the number of different headlines, which is a multiple of each batch size.
BATCH_SIZES, NUM_HEADLINES = (1, 8, 32, 64, 128), 4_096

#: Texts of mixed lengths in one call of the engine, which sorts them by length; a multiple of ten.
NUM_SORTED = 200

#: A trial takes this share of the time of a run against a server: an engine reaches its full speed at once.
SHARE = 0.25


def run(plan: Plan) -> list[Row]:
    """Run each precision in turns."""
    with ExitStack() as running:
        engines = [
            running.enter_context(
                bare(name.replace("shoal", "bare engine"), environment.get("SHOAL_PRECISION", "auto"))
            )
            for name, environment in PRECISIONS.items()
        ]
        by_size = zip(*(engine.headline_trials(plan.texts) for engine in engines), strict=True)
        mixed, case = plan.texts.headlines_and_abstracts, "headlines and abstracts, 32 a pass as they come"
        longer = [engine.trial(case, 32, mixed) for engine in engines]
        return plan.interleave("engine", [*chain.from_iterable(by_size), *longer])


@dataclass(frozen=True)
class Engine:
    """An engine in a process of its own."""

    name: str
    process: ProcessPoolExecutor

    def headline_trials(self, texts: Texts) -> list[Trial]:
        """Return a trial for each batch size, of forward passes over that number of headlines."""
        headlines = texts.headlines[-NUM_HEADLINES:]
        return [self.trial(f"{size} headline{'s' * (size > 1)} a pass", size, headlines) for size in BATCH_SIZES]

    def sorted_trial(self, texts: Texts) -> Trial:
        """Return a trial of texts of mixed length, sorted and cut into batches."""
        return self.trial("mixed lengths, sorted", 0, texts.mixed(NUM_SORTED))

    def trial(self, case: str, size: int, texts: Sequence[str]) -> Trial:
        """Return a trial of calls with `size` texts, each of one forward pass; with 0, of calls with all texts."""

        def run(seconds: int, _: int) -> Figures:
            return self.process.submit(_measure, texts, size, seconds * SHARE).result()

        return Trial(case, self.name, run)


@contextmanager
def bare(name: str = "bare engine", precision: str = "auto") -> Iterator[Engine]:
    """Start an engine, and end it after the `with`."""
    threads = processors.threads_for(1, processors.available())
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(NATIVE_THREADS, str(threads)))  # the new process reads them as it starts
    with own_process() as process:
        process.submit(_open, precision, threads).result()
        for limit in NATIVE_THREADS:
            del os.environ[limit]
        os.environ.update(before)
        yield Engine(name, process)


#: The engine of the process that measures, once it is open.
_opened: list[Any] = []


def _open(precision: str, threads: int) -> None:
    threadpool_limits(1, user_api="blas")
    _opened.append(open_encoder(Settings.from_environment(precision=precision), threads))


def _measure(texts: Sequence[str], size: int, seconds: float) -> dict[str, float]:
    """Return texts a second and the median time of a call; tokenizing counts."""
    (engine,), one_pass = _opened, SimpleNamespace(cut=lambda texts: [texts])
    bucketing = one_pass if size else None
    size = size or len(texts)
    parts = cycle([texts[n : n + size] for n in range(0, len(texts) - size + 1, size)])
    times, started = [], time.perf_counter()
    now = started
    while now - started < seconds:
        before = now
        engine.embed(next(parts), Options(), "", bucketing)
        now = time.perf_counter()
        times.append(now - before)
    return {"texts/s": size * len(times) / (now - started), "p50 ms": median(times) * 1_000}
