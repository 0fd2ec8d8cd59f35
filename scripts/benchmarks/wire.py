"""Response formats against each other: the time to write and to read vectors of 1,024 dimensions, and their size."""

import base64
import json
import time
import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

import msgpack
import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.plan import Plan
from shoal.bench.trial import Figures, Row, Trial

COUNTS, DIMENSION = (32, 256), 1_024

Vectors = NDArray[np.float32]

#: How each format is written, and how it is read into an array again; the first is what the others are compared with.
FORMATS: dict[str, tuple[Callable[[Vectors], bytes], Callable[[bytes], Any]]] = {
    "JSON, standard library": (
        lambda vectors: json.dumps(vectors.tolist()).encode(),
        lambda data: np.array(json.loads(data), np.float32),
    ),
    "JSON, orjson": (
        lambda vectors: orjson.dumps(vectors, option=orjson.OPT_SERIALIZE_NUMPY),
        lambda data: np.array(orjson.loads(data), np.float32),
    ),
    "base64 in JSON": (
        lambda vectors: orjson.dumps([base64.b64encode(vector).decode() for vector in vectors]),
        lambda data: [np.frombuffer(base64.b64decode(text), "<f4") for text in orjson.loads(data)],
    ),
    "msgpack, numbers": (
        lambda vectors: bytes(msgpack.packb(vectors.tolist(), use_single_float=True)),
        lambda data: np.array(msgpack.unpackb(data), np.float32),
    ),
    "msgpack, bytes": (
        lambda vectors: bytes(
            msgpack.packb({"dtype": "<f4", "shape": vectors.shape, "data": np.asarray(vectors, "<f4").tobytes()})
        ),
        lambda data: np.frombuffer(msgpack.unpackb(data)["data"], "<f4"),
    ),
    "raw bytes": (lambda vectors: np.asarray(vectors, "<f4").tobytes(), lambda data: np.frombuffer(data, "<f4")),
}


def run(plan: Plan) -> list[Row]:
    """Write and read vectors in all formats, in turns."""
    return plan.interleave("wire", trials())


def trials() -> list[Trial]:
    """Return the trials of all formats."""
    return [Trial(f"{count} x {DIMENSION:,}", name, partial(_run, count, name)) for count in COUNTS for name in FORMATS]


def _run(count: int, name: str, seconds: int, number: int) -> Figures:
    vectors = np.random.default_rng(number).standard_normal((count, DIMENSION), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    write, read = FORMATS[name]
    data = write(vectors)
    return {
        "write ms": _lowest_ms(partial(write, vectors), seconds / 32),
        "read ms": _lowest_ms(partial(read, data), seconds / 32),
        "size in kB": len(data) / 1_000,
    }


def _lowest_ms(step: Callable[[], object], within_s: float) -> float:
    """Return the shortest time of the step, to which other work on the machine added least."""
    lowest, until = timeit.timeit(step, number=1), time.perf_counter() + within_s
    while time.perf_counter() < until:
        lowest = min(lowest, timeit.timeit(step, number=1))
    return lowest * 1_000
