"""An engine in a separate process, without queue and HTTP: its rate is an upper limit for the service."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from typing import Any

from numpy.typing import NDArray
from stack import NATIVE_THREADS
from threadpoolctl import threadpool_limits

from benchmarks.plan import own_process
from benchmarks.trial import Figures, Trial
from shoal.contract.options import Options
from shoal.settings import Settings
from shoal_workers.process import processors
from shoal_workers.service.service import open_encoder

#: A function that returns the normalised vectors `[texts, dimension]` of texts.
Embed = Callable[[Sequence[str]], NDArray[Any]]

#: The engine of the measuring process, once it is open.
_opened: list[Embed] = []


@dataclass(frozen=True)
class Engine:
    """A process with an open engine. It calls functions with the engine's `Embed`."""

    name: str
    process: ProcessPoolExecutor

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call the function in the engine's process, and return its result."""
        return self.process.submit(_call, function, *arguments).result()

    def trial(self, case: str, size: int, texts: Sequence[str], share: float) -> Trial:
        """Return a trial of calls with `size` texts, whose runs are shorter than a server's by the factor `share`."""

        def run(seconds: int, _: int) -> Figures:
            found: Figures = self.call(_measure, texts, size, seconds * share)
            return found

        return Trial(case, self.name, run)


@contextmanager
def started(name: str, num_threads: int, open_engine: Callable[..., Embed], *arguments: object) -> Iterator[Engine]:
    """Start an engine whose libraries have `num_threads` threads each, and end it at the end of the `with`."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(NATIVE_THREADS, str(num_threads)))  # read by the new process at its start
    with own_process() as process:
        try:
            process.submit(_open, open_engine, *arguments).result()
        finally:
            os.environ.clear()
            os.environ.update(before)
        yield Engine(name, process)


def bare(name: str, precision: str) -> AbstractContextManager[Engine]:
    """Start a worker's engine; a call with few texts is one forward pass."""
    num_threads = processors.threads_for(1, processors.available())
    return started(name, num_threads, open_shoal, num_threads, precision)


def open_shoal(num_threads: int, precision: str, engine: str = "auto") -> Embed:
    """Open an engine of Shoal with the default model."""
    threadpool_limits(1, user_api="blas")
    encoder = open_encoder(Settings.from_environment(precision=precision, engine=engine), num_threads)
    return lambda texts: encoder.embed(texts, Options(), "")


def _open(open_engine: Callable[..., Embed], *arguments: object) -> None:
    os.dup2(2, 1)  # some libraries print, but only the tables go to standard output
    _opened.append(open_engine(*arguments))


def _call(function: Callable[..., Any], *arguments: object) -> Any:
    return function(_opened[0], *arguments)


def _measure(embed: Embed, texts: Sequence[str], size: int, seconds: float) -> Figures:
    """Return texts per second, texts per second of processor time of all threads, and the median time of a call.

    Tokenizing counts. Texts per second of processor time are a core's rate, even on a busy machine. The first call does
    not count, because the caches still have another engine's code and weights.
    """
    parts = cycle([texts[n : n + size] for n in range(0, len(texts) - size + 1, size)])
    embed(next(parts))
    times_s: list[float] = []
    processor_s = time.process_time()
    started_s = now = time.perf_counter()
    while not times_s or now - started_s < seconds:
        before = now
        embed(next(parts))
        now = time.perf_counter()
        times_s.append(now - before)
    num_texts, processor_s = size * len(times_s), time.process_time() - processor_s
    rates = {"texts/s": num_texts / (now - started_s), "texts/s of processor time": num_texts / processor_s}
    return {**rates, "p50 ms": median(times_s) * 1_000}
