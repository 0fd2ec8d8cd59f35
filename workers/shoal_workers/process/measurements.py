"""The counters and histograms of a worker since its start, as its heartbeat carries them."""

import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from shoal.contract.histogram import Histogram
from shoal.contract.jobs import LANES
from shoal.contract.replies import TIMINGS

#: All counters. They begin at 0: Prometheus sees no increase in a number whose first value is not 0.
COUNTERS = (
    *("jobs", "failed", "texts", "tokens", "batches", *TIMINGS, "busy_s", "claims", "redeliveries"),
    *("cache_hits", "cache_misses", "cache_refused"),
)

#: Limits of the histograms: of the seconds that a job waited, and of the texts, the tokens and the fill of a pass.
WAIT_LIMITS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0)
TEXTS_LIMITS = (1, 4, 16, 64)
TOKENS_LIMITS = (64, 256, 1_024, 4_096)
FILL_LIMITS = (0.1, 0.25, 0.5, 0.75)


class Measurements:
    """The counters and histograms of a worker. One thread counts, others may read.

    `waits` are of the seconds that jobs waited in each lane until the worker began with them or refused them.
    """

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.waits = {lane: Histogram(WAIT_LIMITS_S) for lane in LANES}
        self._batches = {
            "texts": Histogram(TEXTS_LIMITS),
            "tokens": Histogram(TOKENS_LIMITS),
            "fill": Histogram(FILL_LIMITS),
        }

    def add_batch(self, num_texts: int, num_tokens: int, max_tokens: int) -> None:
        """Count a forward pass of so many texts and tokens, which may have `max_tokens`."""
        self.counters["batches"] += 1
        self._batches["texts"].add(num_texts)
        self._batches["tokens"].add(num_tokens)
        self._batches["fill"].add(num_tokens / max_tokens)

    def to_heartbeat(self) -> dict[str, Any]:
        """Return the fields of the heartbeat that say what was measured."""
        return {
            "counters": dict(self.counters) | {"cpu_s": time.process_time()},
            "waits": {lane: wait.to_map() for lane, wait in self.waits.items()},
            "batches": {name: sizes.to_map() for name, sizes in self._batches.items()},
            "memory_bytes": _resident_bytes(),
        }


def _resident_bytes() -> int | None:
    """Return the memory that this process has in use; None where the system does not tell it."""
    if sys.platform != "linux":
        return None
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
