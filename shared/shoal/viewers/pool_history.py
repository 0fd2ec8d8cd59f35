"""The last ten minutes of a pool, for pages and terminals that show it: samples of its lanes and of its heartbeats."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from shoal.contract.histogram import total
from shoal.contract.jobs import LANES
from shoal.contract.replies import TIMINGS
from shoal.queue.lane import LaneLoad
from shoal.queue.producer import Producer
from shoal.viewers.recent_job import recent_jobs
from shoal.viewers.worker_meter import Stretch, WorkerMeter, written_at

#: Time from one sample to the next, in seconds.
EVERY_S = 2.0

#: Time for which a sample is kept, and a worker that is not alive any more, in seconds.
KEPT_S = 600.0

#: Most workers that are shown though they are not alive any more.
MAX_GONE = 20

#: Numbers of samples over which cache hits are counted: for their share of all texts, and for their rate, which needs
#: the time between two heartbeats.
_NUM_SHARE_SAMPLES, _NUM_RATE_SAMPLES = 30, 5

#: Digits that a sample keeps: all samples are sent to each page that opens.
_NUM_DIGITS = 4

#: Most characters of a word of a heartbeat that are shown.
_MAX_CHARS = 256

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

_QUANTILES = {"wait_p50_s": 0.5, "wait_p95_s": 0.95}

#: The measurements of a sample, and those of each lane there.
_RATES = {
    "jobs_per_s": "jobs",
    "failed_per_s": "failed",
    "computed_texts_per_s": "texts",
    "cached_texts_per_s": "cache_hits",
    "tokens_per_s": "tokens",
}
_MEASUREMENTS = ("num_workers", *_RATES, "busy", "cache_hit_rate", *TIMINGS)
_LANE_MEASUREMENTS = ("num_jobs", "oldest_age_s", *_QUANTILES, "wait_max_s")


@dataclass(slots=True)
class _Worker:
    """A worker, and when it was alive last, in Unix seconds."""

    seen_at: float
    meter: WorkerMeter = field(default_factory=WorkerMeter)


class PoolHistory:
    """The samples of one pool. Thread-safe.

    `num_cached` returns how many texts the caller has found in the cache: workers know only of their own. Samples, and
    workers that are not alive any more, are kept for `kept_s`.
    """

    def __init__(self, num_cached: Callable[[], float] = lambda: 0, kept_s: float = KEPT_S):
        self._num_cached = num_cached
        self._kept_s = kept_s
        self._workers: dict[str, _Worker] = {}
        self._cached: deque[tuple[float, float]] = deque(maxlen=_NUM_SHARE_SAMPLES)
        self._samples: deque[dict[str, Any]] = deque(maxlen=max(1, int(kept_s / EVERY_S)))
        self._now: dict[str, Any] = {"time": 0.0, "lanes": [], "workers": [], "num_dead": 0, "recent": []}
        self._lock = Lock()

    async def sample(self, producer: Producer) -> None:
        """Read the pool once, and keep a sample of it. Raises Unavailable if Redis does not answer."""
        loads, num_dead = await producer.loads(), await producer.num_dead()
        workers, now_s = await producer.pool.workers(), await producer.now()
        with self._lock:
            self._note(workers, now_s)
            alive = {worker_id: self._workers[worker_id].meter for worker_id in workers}
            self._cached.append((now_s, self._num_cached()))
            while self._samples and self._samples[-1]["time"] >= now_s:  # Redis's clock was set back
                self._samples.pop()
            self._samples.append(self._measure(loads, list(alive.values()), now_s))
            abouts = {worker_id: meter.about for worker_id, meter in alive.items()}
            self._now = {
                "time": now_s,
                "lanes": [_describe_lane(lane, loads[lane], alive.values()) for lane in LANES],
                "workers": [
                    _describe_worker(name, self._workers[name], name in alive) for name in sorted(self._workers)
                ],
                "num_dead": num_dead,
                "recent": recent_jobs(abouts),
            }

    def snapshot(self, since_s: float = 0.0) -> dict[str, Any]:
        """Return what the pool is and does, and the samples that are later than `since_s`, but always the last one.

        It has `time`, `every_s`, `lanes`, `workers`, `num_dead`, `recent` (the last jobs of each worker, the newest
        first) and `history`, which has for each measurement the list of its values. What is not known is None.
        docs/http.md has the fields.
        """
        with self._lock:
            samples = [sample for sample in self._samples if sample["time"] > since_s] or list(self._samples)[-1:]
            return {**self._now, "every_s": EVERY_S, "history": _columns(samples)}

    def _note(self, workers: Mapping[str, Mapping[str, Any]], now_s: float) -> None:
        """Take over the heartbeats, and forget workers that are gone for long."""
        for worker_id, about in workers.items():
            worker = self._workers.setdefault(worker_id, _Worker(now_s))
            worker.meter.update(about)
            worker.seen_at = now_s
        gone = sorted((w.seen_at, worker_id) for worker_id, w in self._workers.items() if worker_id not in workers)
        for n, (seen_at, worker_id) in enumerate(reversed(gone)):
            if n >= MAX_GONE or seen_at <= now_s - self._kept_s:
                del self._workers[worker_id]

    def _measure(self, loads: Mapping[str, LaneLoad], meters: Sequence[WorkerMeter], now_s: float) -> dict[str, Any]:
        """Return a sample: its time, its measurements, and those of each lane."""
        last = [stretch for meter in meters if (stretch := meter.last())]
        rates = {name: _rate(last, counter) for name, counter in _RATES.items()}
        rates["cached_texts_per_s"] += self._cached_per_s()
        return {
            "time": now_s,
            "num_workers": len(meters),
            **rates,
            "busy": _busy(last),
            "cache_hit_rate": self._cache_hit_rate(meters),
            **{name: _ratio(_sum(last, name), _sum(last, "jobs")) for name in TIMINGS},
            "lanes": {lane: _measure_lane(lane, loads[lane], last, meters) for lane in LANES},
        }

    def _cached_per_s(self) -> float:
        """Return how many texts the caller found in the cache in a second."""
        first = self._cached[max(0, len(self._cached) - 1 - _NUM_RATE_SAMPLES)]
        seconds, num_cached = (now - then for now, then in zip(self._cached[-1], first, strict=True))
        return num_cached / seconds if seconds > 0 else 0.0

    def _cache_hit_rate(self, meters: Iterable[WorkerMeter]) -> float | None:
        """Return the share of texts that the cache had in the last minute. The misses of the caller reach a worker."""
        stretches = [stretch for meter in meters for stretch in meter.stretches]
        num_hits = _sum(stretches, "cache_hits") + self._cached[-1][1] - self._cached[0][1]
        return _ratio(num_hits, num_hits + _sum(stretches, "cache_misses"))


def _measure_lane(
    lane: str, load: LaneLoad, last: Sequence[Stretch], meters: Iterable[WorkerMeter]
) -> dict[str, float | None]:
    about_load = {"num_jobs": load.num_jobs, "oldest_age_s": load.oldest_age_s}
    return about_load | _waits(lane, last, _longest_wait(lane, meters))


def _describe_lane(lane: str, load: LaneLoad, meters: Iterable[WorkerMeter]) -> dict[str, Any]:
    """Return what a lane holds, and the waits of the last minute."""
    meters = list(meters)
    stretches = [stretch for meter in meters for stretch in meter.stretches]
    return {
        "lane": lane,
        "num_jobs": load.num_jobs,
        "num_texts": load.num_texts,
        "num_bytes": load.num_bytes,
        "oldest_age_s": load.oldest_age_s,
        **_waits(lane, stretches, _longest_wait(lane, meters)),
    }


def _describe_worker(worker_id: str, worker: _Worker, is_alive: bool) -> dict[str, Any]:
    """Return what a worker is and does; one that is not alive any more is `gone`, and does nothing."""
    meter = worker.meter
    stretches = list(meter.stretches)[-1:] if is_alive else []
    fill = total(stretch.fill for stretch in meter.stretches if stretch.fill) if is_alive else None
    return {
        "id": worker_id,
        "state": _typed(meter.about, "state", str) or "unknown" if is_alive else "gone",
        **{name: _typed(meter.about, name, type_) for name, type_ in _WORKER_FIELDS.items()},
        "jobs_per_s": _rate(stretches, "jobs") if stretches else None,
        "computed_texts_per_s": _rate(stretches, "texts") if stretches else None,
        "busy": _busy(stretches),
        "batch_fill": _ratio(fill.sum, fill.num_values) if fill else None,
        "written_at": written_at(meter.about),
        "seen_at": worker.seen_at,
    }


def _waits(lane: str, stretches: Iterable[Stretch], longest_s: float | None) -> dict[str, float | None]:
    """Return the longest wait of the lane's jobs, and quantiles of their waits in these stretches, in seconds.

    The quantiles are estimates, of which none exceeds the longest wait.
    """
    waits = total(stretch.waits[lane] for stretch in stretches if lane in stretch.waits)
    quantiles = {name: waits.quantile(share) if waits else None for name, share in _QUANTILES.items()}
    bounded = {name: _least(wait_s, longest_s) for name, wait_s in quantiles.items()}
    return bounded | {"wait_max_s": longest_s}


def _least(wait_s: float | None, longest_s: float | None) -> float | None:
    return wait_s if wait_s is None or longest_s is None else min(wait_s, longest_s)


def _longest_wait(lane: str, meters: Iterable[WorkerMeter]) -> float | None:
    """Return the longest wait of a job of the lane in the last minute."""
    told = [longest for meter in meters if (longest := _typed(meter.about, "longest_waits", dict))]
    return max((wait_s for longest in told if (wait_s := _typed(longest, lane, _Number)) is not None), default=None)


def _typed(values: Mapping[str, Any], name: str, type_: Any) -> Any:
    """Return a value of a heartbeat, of a string its beginning; None if it is of another type."""
    value = values.get(name)
    if isinstance(value, str):
        value = value[:_MAX_CHARS]
    return value if isinstance(value, type_) else None


def _sum(stretches: Iterable[Stretch], counter: str) -> float:
    return sum(stretch.counters.get(counter, 0.0) for stretch in stretches)


def _rate(stretches: Iterable[Stretch], counter: str) -> float:
    """Return by how much a counter rose in a second, in workers that did so side by side."""
    return sum(stretch.counters.get(counter, 0.0) / stretch.seconds for stretch in stretches)


def _busy(stretches: Sequence[Stretch]) -> float | None:
    """Return the mean share of the time in which engines computed.

    A forward pass counts in the stretch in which it ends, where it may have begun before: a share is at most 1.
    """
    shares = [min(1.0, stretch.counters.get("busy_s", 0.0) / stretch.seconds) for stretch in stretches]
    return _ratio(sum(shares), len(shares))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _columns(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return for each measurement of the samples the list of its values."""
    return {
        "time": [round(sample["time"], 3) for sample in samples],
        **_lists(samples, _MEASUREMENTS),
        "lanes": {lane: _lists([sample["lanes"][lane] for sample in samples], _LANE_MEASUREMENTS) for lane in LANES},
    }


def _lists(samples: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, list[float | None]]:
    return {name: [_rounded(sample[name]) for sample in samples] for name in names}


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.{_NUM_DIGITS}g}")
