"""The engine without queue and HTTP: packed against padded, and the reference for what the service reaches.

Each form has a process of its own, as in a worker, and waits while another is measured.
"""

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle
from pathlib import Path
from statistics import median
from typing import Any

from stack import HOME, NATIVE_THREADS, model
from threadpoolctl import threadpool_limits

from benchmarks import padded
from benchmarks.plan import Plan, Texts, own_process, precisions, say
from shoal.bench.trial import Figures, Row, Trial
from shoal.jobs import Options
from shoal.settings import Settings
from shoal_workers.encoding.encoder import TokenizedText as Text
from shoal_workers.process import processors
from shoal_workers.service import open_encoder

#: Headlines a forward pass, and those that passes are made of: multiples of every batch size.
BATCH_SIZES, NUM_HEADLINES = (1, 8, 32, 64, 128), 4_096

#: Texts of mixed length that the engine gets at once, to sort: a multiple of ten.
NUM_SORTED = 200

#: A trial of the engine takes this part of a run's time: it needs no time to get going.
SHARE = 0.25


def run(plan: Plan) -> list[Row]:
    """Run packed texts in each precision, and padded ones, in turns."""
    with ExitStack() as running:
        engines = [
            running.enter_context(bare(name.replace("shoal", "packed"), environment.get("SHOAL_PRECISION", "auto")))
            for name, environment in precisions().items()
        ]
        engines.append(running.enter_context(bare("padded", "auto", _padded_graph())))
        by_size = zip(*(engine.headline_trials(plan.texts) for engine in engines), strict=True)
        longer = [engine.longer_trial(plan.texts) for engine in engines]
        return plan.interleave("engine", [*chain.from_iterable(by_size), *longer])


@dataclass(frozen=True)
class Engine:
    """An engine in a process of its own."""

    name: str
    process: ProcessPoolExecutor

    def headline_trials(self, texts: Texts) -> list[Trial]:
        """Return trials of forward passes over so many headlines each."""
        headlines = texts.headlines[-NUM_HEADLINES:]
        return [self._trial(f"{size} headline{'s' * (size > 1)} a pass", size, headlines) for size in BATCH_SIZES]

    def longer_trial(self, texts: Texts) -> Trial:
        """Return a trial of passes over headlines mixed with abstracts."""
        mixed = [text for pair in zip(texts.headlines, texts.abstracts[:512], strict=False) for text in pair]
        return self._trial("headlines and abstracts, 32 a pass as they come", 32, mixed)

    def sorted_trial(self, texts: Texts) -> Trial:
        """Return a trial of texts of mixed length, sorted and cut into batches."""
        return self._trial("mixed lengths, sorted", 0, texts.mixed(NUM_SORTED))

    def _trial(self, case: str, size: int, texts: Sequence[str]) -> Trial:
        return Trial(case, self.name, partial(self._run, size, texts))

    def _run(self, size: int, texts: Sequence[str], seconds: int, _: int) -> Figures:
        return self.process.submit(_measure, texts, size, seconds * SHARE).result()


@contextmanager
def bare(name: str = "bare engine", precision: str = "auto", graph: Path | None = None) -> Iterator[Engine]:
    """Start an engine, and end it after the `with`."""
    threads = processors.threads_for(1, processors.available())
    before = {limit: os.environ.get(limit) for limit in NATIVE_THREADS}
    os.environ.update(dict.fromkeys(NATIVE_THREADS, str(threads)))  # the new process reads them as it starts
    with own_process() as process:
        process.submit(_open, precision, threads, graph).result()
        for limit, value in before.items():
            del os.environ[limit]
            if value is not None:
                os.environ[limit] = value
        yield Engine(name, process)


#: The engine of the process that measures, once it is open.
_opened: list[Any] = []


def _open(precision: str, threads: int, graph: Path | None) -> None:
    threadpool_limits(1, user_api="blas")
    settings = Settings.from_environment(precision=precision)
    _opened.append(padded.Padded(graph, settings, threads) if graph else open_encoder(settings, threads))


class OnePass:
    """A stand-in for the encoder's batcher: everything goes in one forward pass."""

    def cut(self, texts: list[Text]) -> list[list[Text]]:
        """Return the texts as one batch."""
        return [texts]


def _measure(texts: Sequence[str], size: int, seconds: float) -> dict[str, float]:
    """Return texts a second and the median time of a call, which has `size` texts; tokenizing counts.

    With a size of 0, a call has all texts, which the encoder's batcher sorts; else it is one forward pass.
    """
    (engine,), batcher = _opened, OnePass() if size else None
    size = size or len(texts)
    num_texts, times, started = 0, [], time.perf_counter()
    for part in cycle([texts[n : n + size] for n in range(0, len(texts) - size + 1, size)]):
        before = time.perf_counter()
        engine.embed(part, Options(), "", batcher)
        now = time.perf_counter()
        num_texts += len(part)
        times.append(now - before)
        if now - started >= seconds:
            break
    return {"texts/s": num_texts / (now - started), "p50 ms": median(times) * 1_000}


def _padded_graph() -> Path:
    """Return the folder of the model's graph on padded texts; export it if it is missing."""
    version = hashlib.sha256(Path(padded.__file__).read_bytes()).hexdigest()
    folder = HOME / "bench" / f"padded-{model().digest[:8]}-{version[:8]}"
    if not (folder / padded.GRAPH).exists():
        say(f"engine: exporting the padded graph to {folder}")
        with own_process() as process:  # which loads torch
            process.submit(padded.export, model().source, folder).result()
    return folder
