"""The machine's own limit: the rate of large matrix products in the engine's library, and the products of a text.

A text is multiplied with every weight of the model once for each of its tokens, and a product and its sum are two
operations. What attention multiplies besides, 1 % for a headline, is not counted. The rate over the operations of a
text is the number of texts a second that the machine allows, with nothing else to do.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from stack import HOME, model

from benchmarks.plan import own_process
from benchmarks.trial import Figures, Trial
from shoal_workers.encoding.tokenizer import Tokenizer
from shoal_workers.model.model import prepared_folder
from shoal_workers.process import processors

#: Rows and columns of each square matrix, and the length of a chain of products, in which each takes the result of the
#: one before.
SIZE, NUM_PRODUCTS = 2_048, 8

#: Upper end of the range that 8 bits stand for, which begins at 0: lower activations become 0.
HIGHEST = 4.0

#: A trial takes this part of a run's time.
SHARE = 0.25


@dataclass(frozen=True)
class Lengths:
    """The tokens of each of some texts."""

    tokens: Sequence[int]

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Lengths":
        """Return the numbers of tokens that the served model takes of each text."""
        prepared = prepared_folder(HOME, model().name)
        found = Tokenizer(prepared / "tokenizer.json", model().max_tokens).encode(texts)
        return cls([len(tokens.ids) for tokens in found])

    @property
    def operations(self) -> float:
        """Operations of the model's products for a text, on average."""
        return 2.0 * model().num_weights * float(np.mean(self.tokens))

    def usual(self, size: int) -> slice:
        """Return the place of `size` consecutive texts whose tokens are nearest in number to those of average texts."""
        sums = np.reshape(self.tokens[: len(self.tokens) // size * size], (-1, size)).sum(axis=1)
        start = int(np.abs(sums - size * np.mean(self.tokens)).argmin()) * size
        return slice(start, start + size)


@contextmanager
def limit_trial(case: str, name: str, precision: str, operations: float) -> Iterator[Trial]:
    """Yield a trial that multiplies large matrices on all processors, in a process of its own.

    `operations` are those of a text.
    """
    with own_process() as process:
        process.submit(_open, precision).result()
        yield Trial(case, name, lambda seconds, _: _run(process, operations, seconds * SHARE))


def _run(process: ProcessPoolExecutor, operations: float, seconds: float) -> Figures:
    rate = process.submit(_measure, seconds).result()
    return {"texts/s": rate / operations, "GFLOP/s": rate / 1e9, "GFLOP a text": operations / 1e9}


#: The requests of the process that measures, once they are open.
_opened: list[Any] = []


def _open(precision: str) -> None:
    compiled, threads = compile_products(precision, SIZE)
    _opened.extend(compiled.create_infer_request() for _ in range(threads))
    for request in _opened:
        request.set_input_tensor(ov.Tensor(np.random.default_rng(7).random((SIZE, SIZE), np.float32)))


def compile_products(precision: str, size: int) -> tuple[Any, int]:
    """Return products of `size` by `size` matrices, and how many of them run side by side, on a thread each.

    With the precision `auto`, they are computed as the engine computes by default.
    """
    threads = processors.threads_for(1, processors.available())
    options = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": threads,
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "auto" and processors.has_bf16() else "f32",
        "ENABLE_CPU_PINNING": False,
    }
    return ov.Core().compile_model(_products(size, in_8_bits=precision == "int8"), "CPU", options), threads


def _measure(seconds: float) -> float:
    """Return the operations a second of products side by side."""
    num_rounds, started = 0, time.perf_counter()
    while (taken_s := time.perf_counter() - started) < seconds or not num_rounds:
        for request in _opened:
            request.start_async()
        for request in _opened:
            request.wait()
        num_rounds += 1
    return num_rounds * len(_opened) * NUM_PRODUCTS * 2.0 * SIZE**3 / taken_s


def _products(size: int, in_8_bits: bool) -> ov.Model:
    """Return a graph of products one after the other.

    In 8 bits, activations are rounded with a scale that is known before, which costs least.
    """
    random = np.random.default_rng(7)
    first = found = ops.parameter([size, size], np.float32)
    for _ in range(NUM_PRODUCTS):
        weights = (random.standard_normal((size, size), np.float32) / size**0.5).astype(np.float32)
        if in_8_bits:
            found = ops.fake_quantize(found, *map(np.float32, (0, HIGHEST, 0, HIGHEST)), 256)
            scale = np.float32(np.abs(weights).max() / 127)
            rounded = ops.constant(np.rint(weights / scale).astype(np.int8))
            found = ops.matmul(found, ops.multiply(ops.convert(rounded, "f32"), scale), False, True)
        else:
            found = ops.matmul(found, ops.constant(weights), False, True)
    return ov.Model([found], [first])
