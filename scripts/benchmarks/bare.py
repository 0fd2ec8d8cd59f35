"""The engine alone, texts in and finished vectors out, as a process that is told by lines of JSON what to measure.

The first line says which engine, and each of the others what to do; a line of figures answers each.
"""

import json
import sys
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

from threadpoolctl import threadpool_limits

from benchmarks.padded import Padded
from shoal.jobs import Options
from shoal.settings import Settings
from shoal_workers.encoding.encoder import Encoder, Row
from shoal_workers.process.service import open_encoder


class OnePass:
    """Stands where the encoder has its batcher: everything it is given goes in one forward pass."""

    def cut(self, rows: list[Row]) -> list[list[Row]]:
        """The rows as one batch."""
        return [rows]


def main() -> None:
    """Opens the engine and measures until there are no more lines."""
    threadpool_limits(1, user_api="blas")
    engine = _open(**json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        print(json.dumps(measure(engine, **json.loads(line))), flush=True)


def measure(engine: Encoder | Padded, texts: Sequence[str], size: int, seconds: float) -> dict[str, float]:
    """Texts a second and the median time of a call, which has `size` texts; tokenizing counts, as it does in a worker.

    With a size of 0, a call has all texts, which the encoder's batcher sorts; else it is one forward pass.
    """
    batcher: Any = OnePass() if size else None
    size = size or len(texts)
    parts = [texts[n : n + size] for n in range(0, len(texts) - size + 1, size)]
    num_texts, times = 0, []
    started = time.perf_counter()
    for part in cycle(parts):
        before = time.perf_counter()
        engine.embed(part, Options(), "", batcher)
        now = time.perf_counter()
        num_texts += len(part)
        times.append(now - before)
        if now - started >= seconds:
            break
    return {"texts/s": num_texts / (now - started), "p50 ms": median(times) * 1_000}


def _open(precision: str, threads: int, padded: str | None) -> Encoder | Padded:
    settings = Settings.from_environment(precision=precision)
    if padded:
        return Padded(Path(padded), settings, threads)
    return open_encoder(settings, threads)


if __name__ == "__main__":
    main()
