"""The jobs that a worker answered last, as its heartbeat tells them: what they were and how long they took."""

from collections import deque
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from shoal.errors import ShoalError
from shoal.outline import Outline
from shoal.queue.delivery import Delivery
from shoal.replies import TIMINGS, Reply
from shoal_workers.work import Work

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
        self._jobs: deque[dict[str, Any]] = deque(maxlen=max_jobs)
        self._longest: dict[tuple[str, int], float] = {}
        self._lock = Lock()

    def add_done(self, works: Sequence[Work], now_s: float) -> None:
        """Note jobs that were answered with a result."""
        jobs = [_describe_done(work, now_s) for work in works[-MAX_JOBS:]]
        with self._lock:
            self._jobs.extend(jobs)
            for work in works:
                self._note_wait(work.delivery.lane, work.timings["queue_s"], now_s)

    def add_failed(self, refusals: Sequence[tuple[Delivery, ShoalError]], now_s: float) -> None:
        """Note jobs that were answered with an error."""
        jobs = [_describe_failed(delivery, error, now_s) for delivery, error in refusals[-MAX_JOBS:]]
        with self._lock:
            self._jobs.extend(jobs)
            for delivery, _ in refusals:
                self._note_wait(delivery.lane, delivery.queued_s(now_s), now_s)

    def newest(self) -> list[dict[str, Any]]:
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

    def _note_wait(self, lane: str, wait_s: float, now_s: float) -> None:
        part = (lane, int(now_s / PART_S))
        self._longest[part] = max(wait_s, self._longest.get(part, 0.0))

    def _forget_before(self, time_s: float) -> None:
        """Forget the parts of the window that are over, and those that are to come since the clock was set back."""
        first, last = int(time_s / PART_S), int((time_s + WINDOW_S) / PART_S)
        self._longest = {part: wait_s for part, wait_s in self._longest.items() if first < part[1] <= last}


def _describe_done(work: Work, now_s: float) -> dict[str, Any]:
    _, num_tokens = work.num_computed
    return {
        **_describe(work.delivery, now_s),
        "id": work.job.id,
        "op": work.job.op,
        "num_texts": len(work.job.texts),
        "num_tokens": num_tokens,
        "num_cached": len(work.cached),
        "status": "done",
        "error": None,
        "timings": {name: round(work.timings[name], 6) for name in TIMINGS},
    }


def _describe_failed(delivery: Delivery, error: ShoalError, now_s: float) -> dict[str, Any]:
    """Return what is known of a job that may be unreadable; null where its bytes do not tell."""
    outline = Outline.read(delivery.data)
    return {
        **_describe(delivery, now_s),
        "id": outline.id,
        "op": outline.op,
        "num_texts": outline.num_texts,
        "num_tokens": None,
        "num_cached": None,
        "status": Reply.failure("", error).status,
        "error": error.code,
        "timings": {},
    }


def _describe(delivery: Delivery, now_s: float) -> Mapping[str, Any]:
    return {
        "lane": delivery.lane,
        "client": delivery.client[:MAX_CLIENT_CHARS],
        "ended_at": round(now_s, 3),
        "total_s": round(delivery.queued_s(now_s), 6),
    }
