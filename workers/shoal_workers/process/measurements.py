"""Measurements of a worker: counters and histograms since its start, its throughput, and its last jobs."""

import resource
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from shoal.contract.histogram import Histogram
from shoal.contract.jobs import LANES
from shoal.contract.replies import TIMINGS

#: The names of all counters. Each begins at 0, because Prometheus sees no increase in the first value of a counter.
COUNTERS = (
    *("jobs", "failed", "texts", "tokens", "batches", *TIMINGS, "busy_s", "claims", "redeliveries"),
    *("cache_hits", "cache_misses", "cache_refused"),
)

#: Limits of the histograms of the seconds that a job waited, and of the texts, the tokens and the fill of a pass.
WAIT_LIMITS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0)
TEXTS_LIMITS = (1, 4, 16, 64)
TOKENS_LIMITS = (64, 256, 1_024, 4_096)
FILL_LIMITS = (0.1, 0.25, 0.5, 0.75)


class Measurements:
    """The counters of a worker, histograms of its passes, and for each lane a histogram of the `waits` of jobs."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.waits = {lane: Histogram(WAIT_LIMITS_S) for lane in LANES}
        self._batches = {
            "texts": Histogram(TEXTS_LIMITS),
            "tokens": Histogram(TOKENS_LIMITS),
            "fill": Histogram(FILL_LIMITS),
        }

    def add_batch(self, num_texts: int, num_tokens: int, max_tokens: int) -> None:
        """Count a forward pass with these numbers of texts and tokens. It had room for `max_tokens`."""
        self.counters["batches"] += 1
        self._batches["texts"].add(num_texts)
        self._batches["tokens"].add(num_tokens)
        self._batches["fill"].add(num_tokens / max_tokens)

    def to_heartbeat(self) -> dict[str, Any]:
        """Return the measurements as fields of the heartbeat."""
        return {
            "counters": dict(self.counters) | {"cpu_s": time.process_time()},
            "waits": {lane: wait.to_map() for lane, wait in self.waits.items()},
            "batches": {name: sizes.to_map() for name, sizes in self._batches.items()},
            "memory_bytes": _resident_bytes(),
        }


def _resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes, or None on systems other than Linux."""
    if sys.platform != "linux":
        return None
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()


#: Seconds of work after which the weight of a measurement has halved.
HALF_LIFE_S = 10.0


class Throughput:
    """Texts answered per second of work. Older measurements have less weight."""

    def __init__(self) -> None:
        self._num_texts = 0.0
        self._busy_s = 0.0

    def add_texts(self, num_texts: int) -> None:
        """Count texts that were answered."""
        self._num_texts += num_texts

    def add_busy(self, seconds: float) -> None:
        """Count seconds of work."""
        kept = 0.5 ** (seconds / HALF_LIFE_S)
        self._num_texts *= kept
        self._busy_s = kept * self._busy_s + seconds

    @property
    def texts_per_s(self) -> float:
        """Texts per second; 0 before the first text."""
        return self._num_texts / self._busy_s if self._busy_s else 0.0


#: Number of recent jobs in a heartbeat. Each takes some 250 bytes, and every reader of the pool reads all heartbeats.
MAX_JOBS = 8

#: Largest length of a client's name in a heartbeat, in characters. Longer names are cut.
MAX_CLIENT_CHARS = 256

#: Time over which the longest wait of a lane is measured, and the length of its parts, which expire one by one, in
#: seconds.
WINDOW_S, PART_S = 60.0, 5.0


class RecentJobs:
    """The last jobs of a worker, and the longest wait of each lane in the last minute. Thread-safe."""

    def __init__(self) -> None:
        self._jobs: deque[Mapping[str, Any]] = deque(maxlen=MAX_JOBS)
        self._longest: dict[tuple[str, int], float] = {}
        self._lock = Lock()

    def add(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Add answered jobs, as maps for the heartbeat."""
        with self._lock:
            self._jobs.extend(jobs)

    def add_wait(self, lane: str, wait_s: float, now_s: float) -> None:
        """Add the seconds for which a job of the lane has waited."""
        part = (lane, int(now_s / PART_S))
        with self._lock:
            self._longest[part] = max(wait_s, self._longest.get(part, 0.0))

    def newest(self) -> list[Mapping[str, Any]]:
        """Return the jobs, the newest first."""
        with self._lock:
            return list(reversed(self._jobs))

    def longest_waits(self, now_s: float) -> dict[str, float]:
        """Return, by lane, the longest wait of a job that was answered in the last minute, in seconds."""
        found: dict[str, float] = {}
        with self._lock:
            # Old parts are forgotten, and so are parts in the future, which exist if the clock was set back.
            first, last = int((now_s - WINDOW_S) / PART_S), int(now_s / PART_S)
            self._longest = {part: wait_s for part, wait_s in self._longest.items() if first < part[1] <= last}
            for (lane, _), wait_s in self._longest.items():
                found[lane] = max(wait_s, found.get(lane, 0.0))
        return found
