"""The engine without queue and HTTP: packed against padded, and the reference for what the service reaches.

Each form has a process of its own, as in a worker, and waits while another is measured.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stack import HOME, ROOT, model

from benchmarks import padded
from benchmarks.plan import Plan, precisions, say
from benchmarks.texts import Texts
from shoal.bench.trial import Figures, Row, Trial
from shoal_workers.process import processors

#: Headlines a forward pass.
BATCH_SIZES = (1, 8, 32, 64, 128)

#: Texts of mixed length that the engine gets at once, to sort: a multiple of ten.
NUM_SORTED = 200

#: Headlines that passes are made of: multiples of every batch size.
NUM_HEADLINES = 4_096

#: A trial of the engine takes this part of a run's time: it needs no time to get going.
SHARE = 0.25


def run(plan: Plan) -> list[Row]:
    """Packed rows in each precision, and padded rows, in turns."""
    with ExitStack() as running:
        engines = [
            running.enter_context(bare(name.replace("shoal", "packed"), settings.get("SHOAL_PRECISION", "auto")))
            for name, settings in precisions().items()
        ]
        engines.append(running.enter_context(bare("padded", "auto", padded_graph())))
        longer = [trial for engine in engines for trial in engine.longer_trials(plan.texts)]
        by_size = zip(*(engine.headline_trials(plan.texts) for engine in engines), strict=True)
        return plan.interleave("engine", [*(trial for of_size in by_size for trial in of_size), *longer])


@dataclass(frozen=True)
class Engine:
    """An engine in a process of its own."""

    name: str
    process: "subprocess.Popen[str]"

    def headline_trials(self, texts: Texts) -> list[Trial]:
        """Forward passes over so many headlines each."""
        headlines = texts.headlines[-NUM_HEADLINES:]
        return [self._trial(f"{size} headline{'s' * (size > 1)} a pass", size, headlines) for size in BATCH_SIZES]

    def longer_trials(self, texts: Texts) -> list[Trial]:
        """Passes over headlines mixed with abstracts."""
        mixed = [text for pair in zip(texts.headlines, texts.abstracts[:512], strict=False) for text in pair]
        return [self._trial("headlines and abstracts, 32 a pass as they come", 32, mixed)]

    def sorted_trial(self, texts: Texts) -> Trial:
        """Texts of mixed length, sorted and cut into batches."""
        return self._trial("mixed lengths, sorted", 0, texts.mixed(NUM_SORTED))

    def _trial(self, case: str, size: int, texts: Sequence[str]) -> Trial:
        return Trial(case, self.name, partial(self._run, size, texts))

    def _run(self, size: int, texts: Sequence[str], seconds: int, _: int) -> Figures:
        assert self.process.stdin
        assert self.process.stdout
        print(
            json.dumps({"texts": texts, "size": size, "seconds": seconds * SHARE}), file=self.process.stdin, flush=True
        )
        if answer := self.process.stdout.readline():
            return dict(json.loads(answer))
        sys.exit(f"the engine {self.name!r} has ended: the lines above say why")


@contextmanager
def bare(name: str = "bare engine", precision: str = "auto", padded_graph: Path | None = None) -> Iterator[Engine]:
    """An engine, started and ended."""
    threads = processors.threads_for(1, processors.available())
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), str(threads))
    environment = os.environ | limits | {"PYTHONPATH": str(ROOT / "scripts"), "SHOAL_HOME": str(HOME)}
    command = [sys.executable, "-m", "benchmarks.bare"]
    order = {"precision": precision, "threads": threads, "padded": padded_graph and str(padded_graph)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin
        print(json.dumps(order), file=process.stdin, flush=True)
        yield Engine(name, process)


def padded_graph() -> Path:
    """The folder of the model's graph on padded rows, exported if it is not there."""
    original, version = model(), hashlib.sha256(Path(padded.__file__).read_bytes()).hexdigest()
    folder = HOME / "bench" / f"padded-{original.digest[:8]}-{version[:8]}"
    if not (folder / padded.GRAPH).exists():
        say(f"engine: exporting the padded graph to {folder}")
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.padded", original.source, str(folder)]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return folder
