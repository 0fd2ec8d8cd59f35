"""The jobs that a worker answered last, as its heartbeat tells them: what they were and how long they took."""

from collections import deque
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

#: Jobs that a heartbeat tells. Each takes some 250 bytes, and every reader of the pool reads all heartbeats.
MAX_JOBS = 8

#: Longest name of a client that is told, in characters.
MAX_CLIENT_CHARS = 256

#: Time for which the longest wait of a lane is told, in seconds, and the length of its parts.
WINDOW_S, PART_S = 60.0, 5.0


class RecentJobs:
    """The last jobs of a worker, and the longest wait of each lane in the last minute. Thread-safe.

    Times are Redis's, in Unix seconds.
    """

    def __init__(self, max_jobs: int = MAX_JOBS):
        self._jobs: deque[Mapping[str, Any]] = deque(maxlen=max_jobs)
        self._longest: dict[tuple[str, int], float] = {}
        self._lock = Lock()

    def add(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Note jobs that were answered, as the heartbeat tells them."""
        with self._lock:
            self._jobs.extend(jobs)

    def add_wait(self, lane: str, wait_s: float, now_s: float) -> None:
        """Note how long a job of the lane has waited."""
        part = (lane, int(now_s / PART_S))
        with self._lock:
            self._longest[part] = max(wait_s, self._longest.get(part, 0.0))

    def newest(self) -> list[Mapping[str, Any]]:
        """Return the jobs, the newest first."""
        with self._lock:
            return list(reversed(self._jobs))

    def longest_waits(self, now_s: float) -> dict[str, float]:
        """Return for each lane the longest wait of a job that was answered in the last minute, in seconds."""
        found: dict[str, float] = {}
        with self._lock:
            self._forget_before(now_s - WINDOW_S)
            for (lane, _), wait_s in self._longest.items():
                found[lane] = max(wait_s, found.get(lane, 0.0))
        return found

    def _forget_before(self, time_s: float) -> None:
        """Forget the parts of the window that are over, and those that are to come since the clock was set back."""
        first, last = int(time_s / PART_S), int((time_s + WINDOW_S) / PART_S)
        self._longest = {part: wait_s for part, wait_s in self._longest.items() if first < part[1] <= last}
