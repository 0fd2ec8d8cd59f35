"""Compares the kernel in scripts/kernel with the engine, each in a process of its own: docs/performance.md has more."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from statistics import median
from typing import Any, Protocol

import numpy as np
from benchmarks.plan import Texts, own_process, say
from kernel.native import CannotRun, Kernel, build
from numpy.typing import NDArray
from stack import DATA, HOME, NATIVE_THREADS, about_machine, datasets

from shoal.bench.table import tables
from shoal.bench.trial import Figures, Row, Trial, interleave
from shoal.settings import Settings
from shoal_workers.encoding.encoder import TokenizedText
from shoal_workers.encoding.tokenizer import Tokenizer, Tokens
from shoal_workers.model.model import Model
from shoal_workers.model.prepare import prepare_if_needed
from shoal_workers.model.source import PACKAGED, find_source
from shoal_workers.process import processors
from shoal_workers.service import open_encoder

Array = NDArray[np.float32]

#: What is compared, by name: the precision of the kernel or the engine.
TARGETS = {"kernel int8": "int8", "kernel bf16": "bf16", "shoal int8": "int8", "shoal bf16": "bf16"}
REFERENCE = "shoal f32"

#: Texts a pass, by case; no two passes have the same texts.
HEADLINE_CASES = {"64 headlines a pass": 64, "8 headlines a pass": 8, "1 headline a pass": 1}
NUM_HEADLINES, NUM_COMPARED = 2_560, 1_000
ABSTRACT_CASE, NUM_ABSTRACTS = "32 abstracts a pass", 288

#: Seconds of a run of a trial.
RUN_S = 0.6


class Encodes(Protocol):
    """The kernel or the engine; tokenizing is not measured."""

    def tokenize(self, texts: Sequence[str]) -> Sequence[Tokens]:
        """Return the tokens of the texts."""

    def encode(self, texts: Sequence[Tokens]) -> Array:
        """Return the vectors of the texts, computed in one pass."""


class OurKernel:
    """The kernel, with the tokenizer of the engine."""

    def __init__(self, precision: str, threads: int):
        prepared = prepare_if_needed(HOME, PACKAGED)
        self._tokenizer = Tokenizer(prepared / "tokenizer.json", Model.open(prepared).max_tokens)
        self._kernel = Kernel(build(HOME / "bench" / "kernel"), find_source(PACKAGED), precision)
        self._threads = threads

    def tokenize(self, texts: Sequence[str]) -> Sequence[Tokens]:
        """Return the tokens of the texts."""
        return self._tokenizer.encode(texts)

    def encode(self, texts: Sequence[Tokens]) -> Array:
        """Return the vectors of the texts."""
        return self._kernel.encode([tokens.ids for tokens in texts], self._threads)


class OurEngine:
    """The engine as a worker has it."""

    def __init__(self, precision: str, threads: int):
        settings = Settings.from_environment(precision=precision, model=PACKAGED)
        self._encoder = open_encoder(settings, threads)

    def tokenize(self, texts: Sequence[str]) -> Sequence[Tokens]:
        """Return the tokens of the texts."""
        return self._encoder.tokenize(texts)

    def encode(self, texts: Sequence[Tokens]) -> Array:
        """Return the vectors of the texts."""
        tokenized = [TokenizedText(tokens) for tokens in texts]
        self._encoder.encode(tokenized)
        return np.concatenate([text.vectors for text in tokenized if text.vectors is not None])


#: What the process encodes with, once it is open.
_opened: list[Encodes] = []


def _open(target: str, precision: str, threads: int) -> None:
    _opened.append((OurKernel if target.startswith("kernel") else OurEngine)(precision, threads))


def _vectors(texts: Sequence[str]) -> Array:
    (encodes,) = _opened
    parts = (texts[n : n + 64] for n in range(0, len(texts), 64))
    found = np.concatenate([encodes.encode(encodes.tokenize(part)) for part in parts])
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


def _measure(texts: Sequence[str], size: int) -> dict[str, float]:
    """Return the rate and the median time of passes over so many texts each."""
    (encodes,) = _opened
    tokens, times = encodes.tokenize(texts), list[float]()
    passes = cycle([tokens[n : n + size] for n in range(0, len(tokens) - size + 1, size)])
    ends_s = time.perf_counter() + RUN_S
    while (before_s := time.perf_counter()) < ends_s:
        encodes.encode(next(passes))
        times.append(time.perf_counter() - before_s)
    return {"texts/s": size / median(times), "p50 ms": median(times) * 1_000}


def compare_speed(processes: dict[str, ProcessPoolExecutor], runs: int) -> list[Row]:
    """Measure all targets in turns."""
    texts = Texts.load()
    headlines = texts.headlines[-NUM_HEADLINES:]
    cases: list[tuple[str, int, Sequence[str]]] = [(case, n, headlines) for case, n in HEADLINE_CASES.items()]
    cases.append((ABSTRACT_CASE, 32, texts.abstracts[:NUM_ABSTRACTS]))

    def trial(case: str, size: int, of_case: Sequence[str], target: str) -> Trial:
        def run(_: int, __: int) -> Figures:
            return processes[target].submit(_measure, of_case, size).result()

        return Trial(case, target, run)

    trials = [trial(*case, target) for case in cases for target in processes if target != REFERENCE]
    return interleave("kernel", trials, runs, 1, say)


def compare_vectors(processes: dict[str, ProcessPoolExecutor], _: int) -> list[Row]:
    """Compare all targets with the engine in f32, and with people's judgements where the data folder is."""
    texts = Texts.load()
    sets = {"headlines": texts.headlines[-NUM_COMPARED:], "abstracts": texts.abstracts[:NUM_ABSTRACTS]}
    if (DATA / "datasets.py").exists():
        data = datasets()
        sets |= {"naughty strings": data.naughty_strings(), "languages": list(data.languages().values())}
    rows = []
    for name, of_set in sets.items():
        expected, *found = _of_all(processes, of_set)
        for target, vectors in zip(TARGETS, found, strict=True):
            cosines = (vectors * expected).sum(axis=1)
            figures: dict[str, Any] = {"texts": len(cosines)}
            figures |= {"lowest x 10,000": 10_000 * cosines.min(), "mean x 10,000": 10_000 * cosines.mean()}
            case = f"cosine to f32, {name}"
            rows.append(Row("kernel", case, target, {figure: [float(value)] for figure, value in figures.items()}))
    return rows + (_judged(processes) if (DATA / "datasets.py").exists() else [])


def _judged(processes: dict[str, ProcessPoolExecutor]) -> list[Row]:
    """Return 100 times the Spearman correlation with people's judgements on STS-B dev."""
    from scipy.stats import spearmanr  # which takes a second

    pairs = datasets().stsb_dev()
    found = zip(*(_of_all(processes, [pair[side] for pair in pairs]) for side in (0, 1)), strict=True)
    scores = [score for _, _, score in pairs]
    return [
        Row("kernel", "STS-B dev", target, {"Spearman x 100": [float(100 * spearmanr(products, scores).statistic)]})
        for target, products in zip([REFERENCE, *TARGETS], ((a * b).sum(axis=1) for a, b in found), strict=True)
    ]


def _of_all(processes: dict[str, ProcessPoolExecutor], texts: Sequence[str]) -> list[Array]:
    """Return the vectors of the reference and of each target."""
    return [processes[target].submit(_vectors, texts).result() for target in [REFERENCE, *TARGETS]]


PARTS = {"vectors": compare_vectors, "speed": compare_speed}


def main() -> None:
    """Print Markdown: the machine, and a table for each part."""
    parser = argparse.ArgumentParser(prog="scripts/kernel-experiment", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; without one, all")
    parser.add_argument("--runs", type=int, default=5, help="runs of each trial, in turns, after a warm-up")
    args = parser.parse_args()
    if unknown := [part for part in args.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}: choose of {', '.join(PARTS)}")
    threads = processors.threads_for(1, processors.available())
    os.environ.update(dict.fromkeys(NATIVE_THREADS, str(threads)))  # new processes read them as they start
    try:
        build(HOME / "bench" / "kernel")
    except CannotRun as error:
        sys.exit(str(error))
    with ExitStack() as stack:
        processes = {}
        for target, precision in ({REFERENCE: "f32"} | TARGETS).items():
            processes[target] = stack.enter_context(own_process())
            processes[target].submit(_open, target, precision, threads).result()
        print("\n".join(f"- {name}: {text}" for name, text in about_machine().items()))
        for part in args.parts or PARTS:
            print(f"\n{tables(PARTS[part](processes, args.runs))}")


if __name__ == "__main__":
    main()
