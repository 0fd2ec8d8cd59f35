"""The metrics of a pool that viewers show: a snapshot, and the rates and waits between snapshots."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from shoal.contract.histogram import Histogram, total
from shoal.contract.jobs import LANES
from shoal.contract.replies import TIMINGS
from shoal.queue.lane import LaneLimits, LaneLoad, UnreadLoad
from shoal.queue.producer import Producer

#: Length of the measurement, in seconds.
WINDOW_S = 10.0

#: The fields of a heartbeat that a viewer shows unchanged.
_WORKER_FIELDS = (
    *("model", "engine", "precision", "threads", "host", "pid"),
    *("texts_per_s", "memory_bytes", "written_at"),
)

#: The heartbeats' counter for each rate of a pool. The rate is the counter's increase per second.
_RATES = {
    "jobs_per_s": "jobs",
    "failed_per_s": "failed",
    "computed_texts_per_s": "texts",
    "cached_texts_per_s": "cache_hits",
    "tokens_per_s": "tokens",
}

#: The fields of a heartbeat whose differences measure a worker's work.
_MEASURED = ("written_at", "counters", "waits", "batches")


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The state of a pool at `time_s` by Redis's clock, in Unix seconds. `workers` has the heartbeats by worker id."""

    time_s: float
    loads: Mapping[str, LaneLoad]
    limits: LaneLimits
    unread: UnreadLoad
    num_dead: int
    workers: Mapping[str, Mapping[str, Any]]

    @classmethod
    async def take(cls, queue: Producer) -> Self:
        """Read the pool in seven round trips, for any number of workers.

        Raises Unavailable if Redis does not answer.
        """
        return cls(
            loads=await queue.loads(),
            limits=await queue.limits(),
            unread=await queue.unread_load(),
            num_dead=await queue.num_dead(),
            workers=await queue.pool.workers(),
            time_s=await queue.now(),
        )


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a worker between two heartbeats, which both have `written_at`."""

    before: Mapping[str, Any]
    now: Mapping[str, Any]

    @property
    def seconds(self) -> float:
        """The time between the heartbeats."""
        return float(self.now["written_at"] - self.before["written_at"])

    def rise(self, counter: str) -> float:
        """Return the increase of a counter, at least 0."""
        before, now = (about.get("counters", {}).get(counter, 0.0) for about in (self.before, self.now))
        return max(0.0, float(now - before))

    def histogram(self, field: str, name: str) -> Histogram | None:
        """Return the histogram of the new values in a field of the heartbeats; None if the worker has none."""
        before, now = (about.get(field, {}).get(name) for about in (self.before, self.now))
        found = Histogram.from_map(now) if now else None
        return found.minus(Histogram.from_map(before)) if found and before else found


class WorkerMeter:
    """The meter of one worker. `work` is its work in the last `WINDOW_S`, or None before its second heartbeat."""

    def __init__(self) -> None:
        self.work: Work | None = None
        self._beats: list[Mapping[str, Any]] = []

    def update(self, about: Mapping[str, Any]) -> None:
        """Add a heartbeat. It may be the same as the last one.

        A heartbeat without a time is ignored. Earlier heartbeats are dropped after `WINDOW_S`, or if Redis's clock
        was set back, so that their times are later than this one's.
        """
        now_s = about.get("written_at")
        if now_s is None or (self._beats and self._beats[-1]["written_at"] == now_s):
            return
        beats = [beat for beat in self._beats if now_s - WINDOW_S <= beat["written_at"] < now_s]
        measured = {name: about[name] for name in _MEASURED if name in about}  # other fields may take megabytes
        self.work = Work(beats[0], measured) if beats else None
        self._beats = [*beats, measured]


class PoolMeter:
    """The meter of one pool, which measures from one snapshot to the next. Not thread-safe.

    `num_cached` returns the number of texts that the caller itself has found in the cache. No worker counts them.
    """

    def __init__(self, num_cached: Callable[[], float] = lambda: 0):
        self._num_cached = num_cached
        self._meters: dict[str, WorkerMeter] = {}
        self._own = WorkerMeter()  # measures the caller's own look-ups in the cache

    def measure(self, pool: PoolSnapshot) -> dict[str, Any]:
        """Return the metrics of the pool in the form of `GET /v1/pool` in docs/http.md. Unknown metrics are None."""
        self._meters = {worker_id: self._meters.get(worker_id) or WorkerMeter() for worker_id in pool.workers}
        for worker_id, about in pool.workers.items():
            self._meters[worker_id].update(about)
        self._own.update({"written_at": pool.time_s, "counters": {"cache_hits": self._num_cached()}})
        work = [meter.work for meter in self._meters.values() if meter.work]
        recent = [job | {"worker": name} for name, about in pool.workers.items() for job in about.get("recent", ())]
        return {
            "time": pool.time_s,
            "lanes": [{"lane": lane, **asdict(pool.loads[lane]), **_waits(lane, work)} for lane in LANES],
            "workers": [
                _describe_worker(name, about, self._meters[name].work) for name, about in sorted(pool.workers.items())
            ],
            "num_dead": pool.num_dead,
            "recent": sorted(recent, key=lambda job: -job["ended_at"]),
            "rates": self._rates(work),
        }

    def _rates(self, work: Sequence[Work]) -> dict[str, float | None]:
        """Return the rates of all workers together."""
        is_known = bool(work) or not self._meters
        with_own = [*work, self._own.work] if self._own.work else work  # workers count the other texts
        num_hits = _sum(with_own, "cache_hits")
        return {
            "num_workers": len(self._meters),
            **{name: _rate(with_own, counter) if is_known else None for name, counter in _RATES.items()},
            "busy": _busy(work),
            "cache_hit_rate": _ratio(num_hits, num_hits + _sum(work, "cache_misses")),
            **{name: _ratio(_sum(work, name), _sum(work, "jobs")) for name in TIMINGS},
        }


def _describe_worker(worker_id: str, about: Mapping[str, Any], work: Work | None) -> dict[str, Any]:
    """Return the metrics of a worker."""
    fill = work.histogram("batches", "fill") if work else None
    return {
        "id": worker_id,
        "state": about.get("state", "unknown"),
        **{name: about.get(name) for name in _WORKER_FIELDS},
        "jobs_per_s": _rate([work], "jobs") if work else None,
        "computed_texts_per_s": _rate([work], "texts") if work else None,
        "busy": _busy([work] if work else []),
        "batch_fill": _ratio(fill.sum, fill.num_values) if fill else None,
    }


def _waits(lane: str, work: Iterable[Work]) -> dict[str, float | None]:
    """Return estimated quantiles of the waits of the lane's jobs, in seconds."""
    waits = total(found for of_worker in work if (found := of_worker.histogram("waits", lane)))
    shares = {"wait_p50_s": 0.5, "wait_p95_s": 0.95}
    return {name: waits.quantile(share) if waits else None for name, share in shares.items()}


def _sum(work: Iterable[Work], counter: str) -> float:
    return sum(of_worker.rise(counter) for of_worker in work)


def _rate(work: Iterable[Work], counter: str) -> float:
    """Return a counter's increase per second, summed over the workers."""
    return sum(of_worker.rise(counter) / of_worker.seconds for of_worker in work)


def _busy(work: Iterable[Work]) -> float | None:
    """Return the share of the time in which engines computed, averaged over `work`.

    A forward pass counts entirely toward the interval in which it ends, even if it began earlier. So each share is
    limited to 1.
    """
    shares = [min(1.0, _rate([of_worker], "busy_s")) for of_worker in work]
    return _ratio(sum(shares), len(shares))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
