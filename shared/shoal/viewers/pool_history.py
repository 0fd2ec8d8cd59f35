"""The last ten minutes of a pool, for pages and terminals that show it: samples of its lanes and of its heartbeats."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from shoal.contract.histogram import total
from shoal.contract.jobs import LANES
from shoal.contract.replies import TIMINGS
from shoal.viewers.pool_snapshot import PoolSnapshot
from shoal.viewers.recent_job import recent_jobs
from shoal.viewers.worker_meter import Work, WorkerMeter, typed, written_at

#: Time from one sample to the next, in seconds.
EVERY_S = 2.0

#: Time for which a sample is kept, and a worker that is not alive any more, in seconds.
KEPT_S = 600.0

#: Most workers that are shown though they are not alive any more.
MAX_GONE = 20

#: Numbers of samples over which cache hits are counted: for their share of all texts, and for their rate, which needs
#: the time between two heartbeats.
_NUM_SHARE_SAMPLES, _NUM_RATE_SAMPLES = 30, 5

_Number = int | float

#: What is shown of a heartbeat as it is, with the types of the values.
_WORKER_FIELDS: dict[str, Any] = {
    "model": str,
    "engine": str,
    "precision": str,
    "threads": int,
    "host": str,
    "pid": int,
    "texts_per_s": _Number,
    "memory_bytes": int,
}

#: The measurements of a sample, and those of each lane there.
_RATES = {
    "jobs_per_s": "jobs",
    "failed_per_s": "failed",
    "computed_texts_per_s": "texts",
    "cached_texts_per_s": "cache_hits",
    "tokens_per_s": "tokens",
}
_MEASUREMENTS = ("num_workers", *_RATES, "busy", "cache_hit_rate", *TIMINGS)
_LANE_MEASUREMENTS = ("num_jobs", "wait_p95_s")


class PoolHistory:
    """The samples of one pool. For one thread.

    `num_cached` returns how many texts the caller has found in the cache: workers know only of their own. Samples, and
    workers that are not alive any more, are kept for `kept_s`.
    """

    def __init__(self, num_cached: Callable[[], float] = lambda: 0, kept_s: float = KEPT_S):
        self._num_cached = num_cached
        self._kept_s = kept_s
        self._meters: dict[str, WorkerMeter] = {}
        self._cached: deque[tuple[float, float]] = deque(maxlen=_NUM_SHARE_SAMPLES)
        self._samples: deque[dict[str, Any]] = deque(maxlen=max(1, int(kept_s / EVERY_S)))
        self._now: dict[str, Any] = {"time": 0.0, "lanes": [], "workers": [], "num_dead": 0, "recent": []}

    def add(self, pool: PoolSnapshot) -> None:
        """Keep a sample of the pool."""
        self._note(pool)
        self._cached.append((pool.time_s, self._num_cached()))
        alive = [self._meters[worker_id] for worker_id in pool.workers]
        while self._samples and self._samples[-1]["time"] >= pool.time_s:  # Redis's clock was set back
            self._samples.pop()
        self._samples.append(self._measure(pool, alive))
        minute = [meter.minute for meter in alive if meter.minute]
        self._now = {
            "time": pool.time_s,
            "lanes": [{"lane": lane, **asdict(pool.loads[lane]), **_waits(lane, minute, alive)} for lane in LANES],
            "workers": [
                _describe_worker(name, meter, name in pool.workers) for name, meter in sorted(self._meters.items())
            ],
            "num_dead": pool.num_dead,
            "recent": recent_jobs(pool.workers),
        }

    def snapshot(self, since_s: float = 0.0) -> dict[str, Any]:
        """Return what the pool is and does, and the samples that are later than `since_s`, but always the last one.

        It has `time`, `every_s`, `lanes`, `workers`, `num_dead`, `recent` (the last jobs of each worker, the newest
        first) and `history`, which has for each measurement the list of its values. What is not known is None.
        docs/http.md has the fields.
        """
        samples = [sample for sample in self._samples if sample["time"] > since_s] or list(self._samples)[-1:]
        lanes = {lane: _columns([sample["lanes"][lane] for sample in samples], _LANE_MEASUREMENTS) for lane in LANES}
        times = [round(sample["time"], 3) for sample in samples]
        history = {"time": times, **_columns(samples, _MEASUREMENTS), "lanes": lanes}
        return {**self._now, "every_s": EVERY_S, "history": history}

    def _note(self, pool: PoolSnapshot) -> None:
        """Take over the heartbeats, and forget workers that are gone for long."""
        for worker_id, about in pool.workers.items():
            meter = self._meters.setdefault(worker_id, WorkerMeter())
            meter.update(about)
            meter.seen_at = pool.time_s
        gone = sorted((meter.seen_at, name) for name, meter in self._meters.items() if name not in pool.workers)
        for n, (seen_at, worker_id) in enumerate(reversed(gone)):
            if n >= MAX_GONE or seen_at <= pool.time_s - self._kept_s:
                del self._meters[worker_id]

    def _measure(self, pool: PoolSnapshot, meters: Sequence[WorkerMeter]) -> dict[str, Any]:
        """Return a sample: its time, its measurements, and those of each lane."""
        last = [meter.last for meter in meters if meter.last]
        rates = {name: _rate(last, counter) for name, counter in _RATES.items()}
        rates["cached_texts_per_s"] += self._cached_per_s()
        return {
            "time": pool.time_s,
            "num_workers": len(meters),
            **rates,
            "busy": _busy(last),
            "cache_hit_rate": self._cache_hit_rate([meter.minute for meter in meters if meter.minute]),
            **{name: _ratio(_sum(last, name), _sum(last, "jobs")) for name in TIMINGS},
            "lanes": {lane: asdict(pool.loads[lane]) | _waits(lane, last, meters) for lane in LANES},
        }

    def _cached_per_s(self) -> float:
        """Return how many texts the caller found in the cache in a second."""
        first = self._cached[max(0, len(self._cached) - 1 - _NUM_RATE_SAMPLES)]
        seconds, num_cached = (now - then for now, then in zip(self._cached[-1], first, strict=True))
        return num_cached / seconds if seconds > 0 else 0.0

    def _cache_hit_rate(self, minute: Iterable[Work]) -> float | None:
        """Return the share of texts that the cache had in the last minute. The misses of the caller reach a worker."""
        minute = list(minute)
        num_hits = _sum(minute, "cache_hits") + self._cached[-1][1] - self._cached[0][1]
        return _ratio(num_hits, num_hits + _sum(minute, "cache_misses"))


def _describe_worker(worker_id: str, meter: WorkerMeter, is_alive: bool) -> dict[str, Any]:
    """Return what a worker is and does; one that is not alive any more is `gone`, and does nothing."""
    last = [meter.last] if is_alive and meter.last else []
    fill = meter.minute.fill if is_alive and meter.minute else None
    return {
        "id": worker_id,
        "state": typed(meter.about, "state", str) or "unknown" if is_alive else "gone",
        **{name: typed(meter.about, name, type_) for name, type_ in _WORKER_FIELDS.items()},
        "jobs_per_s": _rate(last, "jobs") if last else None,
        "computed_texts_per_s": _rate(last, "texts") if last else None,
        "busy": _busy(last),
        "batch_fill": _ratio(fill.sum, fill.num_values) if fill else None,
        "written_at": written_at(meter.about),
        "seen_at": meter.seen_at,
    }


def _waits(lane: str, work: Iterable[Work], meters: Iterable[WorkerMeter]) -> dict[str, float | None]:
    """Return quantiles of the waits of the lane's jobs in seconds, and the longest wait of the last minute.

    The quantiles are estimates, of which none exceeds the longest wait.
    """
    told = [longest for meter in meters if (longest := typed(meter.about, "longest_waits", dict))]
    longest_s = max((s for longest in told if (s := typed(longest, lane, _Number)) is not None), default=None)
    waits = total(of_worker.waits[lane] for of_worker in work if lane in of_worker.waits)
    found: dict[str, float | None] = {"wait_p50_s": None, "wait_p95_s": None, "wait_max_s": longest_s}
    for name, share in (("wait_p50_s", 0.5), ("wait_p95_s", 0.95)):
        if waits and (wait_s := waits.quantile(share)) is not None:
            found[name] = wait_s if longest_s is None else min(wait_s, longest_s)
    return found


def _sum(work: Iterable[Work], counter: str) -> float:
    return sum(of_worker.counters.get(counter, 0.0) for of_worker in work)


def _rate(work: Iterable[Work], counter: str) -> float:
    """Return by how much a counter rose in a second, in workers that did so side by side."""
    return sum(of_worker.counters.get(counter, 0.0) / of_worker.seconds for of_worker in work)


def _busy(work: Iterable[Work]) -> float | None:
    """Return the mean share of the time in which engines computed.

    A forward pass counts between the heartbeats where it ends, and may have begun before: a share is at most 1.
    """
    shares = [min(1.0, of_worker.counters.get("busy_s", 0.0) / of_worker.seconds) for of_worker in work]
    return _ratio(sum(shares), len(shares))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _columns(samples: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, list[float | None]]:
    """Return the values of each measurement with four digits: all samples are sent to each page that opens."""
    return {name: [None if s[name] is None else float(f"{s[name]:.4g}") for s in samples] for name in names}
