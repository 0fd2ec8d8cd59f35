"""MiniLM in one thread on one core: the engine beside other engines, each in a process of its own.

The peers are no dependencies: `scripts/encoders` makes an environment that has them. A peer that is not installed is
left out. Their files, which are made of the same weights, are kept in the home folder.
"""

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stack import HOME, NATIVE_THREADS, datasets, model

from benchmarks.encoder_peers import OPENERS, REFERENCE, Embed, prepared, source
from benchmarks.plan import Plan, say
from benchmarks.trial import Figures, Row, Trial
from shoal.errors import NotReady

#: Tokens of a text, special ones included; texts of a call; and different texts of each length.
TOKENS, BATCHES, NUM_TEXTS = (10, 128, 256), (1, 8, 64), 128

#: Texts of a call where vectors are compared, and texts of each length that are.
BATCH, NUM_COMPARED = 64, 16

#: Texts of mixed lengths on which 8 bits are tried, where that is part of making a file.
NUM_EXAMPLES = 600

#: A trial takes this share of the time of a run against a server, and one call at least.
SHARE = 0.125


def run(plan: Plan) -> list[Row]:
    """Embed the same texts with each engine in turns; cosines to fp32 and STS-B stand beside the rates."""
    folder = prepared(HOME / "bench" / f"encoders-{model().digest[:8]}", plan.texts.mixed(NUM_EXAMPLES))
    of_length = {tokens: texts_of(tokens, [*plan.texts.headlines, *plan.texts.articles]) for tokens in TOKENS}
    with ExitStack() as running:
        engines: dict[str, Engine] = {}
        for name, (package, *_) in OPENERS.items():
            try:
                engines[name] = running.enter_context(started(name, package, folder))
            except NotReady as error:
                say(f"encoders: {name} is left out: {error.message}")
        quality = _quality(engines, [text for texts in of_length.values() for text in texts[:NUM_COMPARED]])
        cases = itertools.product(of_length.items(), BATCHES, engines.values())
        trials = [engine.trial(tokens, size, texts) for (tokens, texts), size, engine in cases]
        measured = plan.interleave("encoders", trials)
        memory = {name: engine.call(_peak_mb) for name, engine in engines.items()}
    return [_row(name, measured, {"peak MB": memory[name], **quality[name]}) for name in engines]


def texts_of(num_tokens: int, sources: Sequence[str]) -> list[str]:
    """Return parts of the texts, at most one of each, that have this number of tokens for the model."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(source() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    found: list[str] = []
    for text in sources:
        offsets = tokenizer.encode(text[: num_tokens * 16], add_special_tokens=False).offsets[: num_tokens - 2]
        part = text[: offsets[-1][1]] if offsets else ""
        if len(tokenizer.encode(part).ids) == num_tokens:
            found.append(part)
        if len(found) == NUM_TEXTS:
            break
    return found


def _quality(engines: Mapping[str, "Engine"], texts: Sequence[str]) -> dict[str, Figures]:
    """Return the cosines of each engine to the first peer, which is the original in fp32, and its score on STS-B."""
    from scipy.stats import spearmanr  # which takes a second

    pairs = datasets().stsb_dev()
    sides = [pair[side] for side in (0, 1) for pair in pairs]
    found = {name: engine.call(_vectors, [*sides, *texts]) for name, engine in engines.items()}
    figures: dict[str, Figures] = {}
    for name, vectors in found.items():
        cosines = (vectors * found[REFERENCE]).sum(axis=1)
        products = vectors[: len(pairs)] * vectors[len(pairs) : 2 * len(pairs)]
        figures[name] = {
            "mean cosine x 100": 100 * float(cosines.mean()),
            "lowest": 100 * float(cosines.min()),
            "STS-B x 100": 100 * float(spearmanr(products.sum(axis=1), [score for *_, score in pairs]).statistic),
        }
    return figures


def _row(name: str, measured: Sequence[Row], others: Figures) -> Row:
    """Return the median of each case of an engine, and the largest spread of one, in a row."""
    own = [row for row in measured if row.target == name]
    rates = {row.case: row.median("texts/s") for row in own}
    spread = max((max(row.figures["texts/s"]) / min(row.figures["texts/s"]) - 1) * 100 for row in own)
    figures = {figure: [value] for figure, value in {**rates, **others, "spread %": spread}.items()}
    return Row("encoders", "texts/s: tokens x batch", name, figures)


@dataclass(frozen=True)
class Engine:
    """An engine in a process of its own, which runs functions of its `embed`."""

    name: str
    connection: Connection

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Return what the function returns in that process. Raises NotReady if the process has ended."""
        try:
            self.connection.send((function, arguments))
            return self.connection.recv()
        except (EOFError, OSError) as error:
            raise NotReady(f"{self.name} has ended: the lines above say why") from error

    def trial(self, tokens: int, size: int, texts: Sequence[str]) -> Trial:
        """Return a trial of calls with `size` texts of that length."""

        def run(seconds: int, number: int) -> Figures:
            if not number:  # the first run warms up
                return {"texts/s": self.call(_rate, texts, 1, 0)}
            return {"texts/s": self.call(_rate, texts, size, seconds * SHARE)}

        return Trial(f"{tokens} x {size}", self.name, run)


@contextmanager
def started(name: str, package: str, folder: Path) -> Iterator[Engine]:
    """Start the process of an engine; it ends with the `with`. Raises NotReady."""
    if not find_spec(package):
        raise NotReady(f"{package} is not installed")
    ours, theirs = Pipe()
    number = theirs.fileno()
    command = [sys.executable, "-m", "benchmarks.encoders", name, str(folder), str(number)]
    environment = os.environ | dict.fromkeys(NATIVE_THREADS, "1") | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with ours, subprocess.Popen(command, env=environment, pass_fds=[number], stdout=subprocess.DEVNULL):
        theirs.close()
        engine = Engine(name, ours)
        engine.call(_pin)  # which waits until the engine is open
        yield engine
        ours.close()


def serve(name: str, folder: Path, connection: Connection) -> None:
    """Open an engine on one core, and run functions of it until the other end is closed."""
    _, open_engine, *arguments = OPENERS[name]
    embed = open_engine(folder, *arguments)
    while True:
        try:
            function, given = connection.recv()
        except EOFError:
            return
        connection.send(function(embed, *given))


def _pin(_: Embed) -> None:
    """Keep all threads of the process on one core, the last."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {max(os.sched_getaffinity(0))})


def _vectors(embed: Embed, texts: Sequence[str]) -> NDArray[np.float32]:
    return np.concatenate([np.array(embed(texts[n : n + BATCH]), np.float32) for n in range(0, len(texts), BATCH)])


def _rate(embed: Embed, texts: Sequence[str], size: int, seconds: float) -> float:
    """Return texts for a second of processor time, of all threads: on a busy machine too it is the rate of a core."""
    parts = itertools.cycle([texts[n : n + size] for n in range(0, len(texts) - size + 1, size)])
    num_texts, started_s, used_s = 0, time.process_time(), 0.0
    while not num_texts or used_s < seconds:
        embed(next(parts))
        num_texts += size
        used_s = time.process_time() - started_s
    return num_texts / used_s


def _peak_mb(_: Embed) -> float:
    """Return the most memory that the process has had, with its libraries and its Python."""
    found = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), Connection(int(sys.argv[3])))
