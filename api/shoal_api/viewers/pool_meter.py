"""The figures of a pool that viewers show: a snapshot, and the rates and waits between snapshots."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, Self

from shoal.contract.histogram import Histogram, total
from shoal.contract.jobs import LANES
from shoal.contract.replies import STATUSES, TIMINGS
from shoal.queue.lane import LaneLimits, LaneLoad, UnreadLoad
from shoal.queue.producer import Producer

#: Length of the long measurement, in seconds. The short measurement covers the time between two heartbeats.
WINDOW_S = 60.0

#: Longest string that is shown from a heartbeat, in characters.
MAX_CHARS = 256

#: Number of seconds for which a dead worker stays in the figures.
GONE_S = 600.0

#: Largest number of dead workers in the figures.
MAX_GONE = 20

_Number = int | float

#: The fields of a heartbeat that a viewer shows unchanged, with the types of their values.
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

#: The heartbeats' counter for each rate of a pool. The rate is the counter's rise in a second.
_RATES = {
    "jobs_per_s": "jobs",
    "failed_per_s": "failed",
    "computed_texts_per_s": "texts",
    "cached_texts_per_s": "cache_hits",
    "tokens_per_s": "tokens",
}

#: The fields of a recent job and their types. A field may be None if its value can be unknown.
_JOB_FIELDS: dict[str, Any] = {
    "id": str | None,
    "op": str | None,
    "lane": str,
    "client": str,
    "num_texts": int | None,
    "num_tokens": int | None,
    "num_cached": int | None,
    "status": str,
    "error": str | None,
    "ended_at": int | float,
    "total_s": int | float,
}

#: Largest number of recent jobs that are used from one heartbeat. Workers write fewer.
_MAX_JOBS = 64

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
    """The work of a worker in the `seconds` between two heartbeats.

    `waits` has a histogram of the seconds that jobs waited, by lane. `fill` is a histogram of the share of the possible
    tokens that each forward pass has used.
    """

    seconds: float
    counters: Mapping[str, float]
    waits: Mapping[str, Histogram]
    fill: Histogram | None

    @classmethod
    def between(cls, before: Mapping[str, Any], now: Mapping[str, Any]) -> "Work":
        """Return the work between two heartbeats. Both have `written_at`."""
        earlier, later = (about.get("counters", {}) for about in (before, now))
        return cls(
            now["written_at"] - before["written_at"],
            {name: max(0.0, number - earlier.get(name, 0)) for name, number in later.items()},
            {lane: _since(before, now, "waits", lane) for lane in now.get("waits", {})},
            _since(before, now, "batches", "fill") if "fill" in now.get("batches", {}) else None,
        )


@dataclass(slots=True)
class WorkerMeter:
    """The meter of one worker: its last heartbeat, and its work since the previous heartbeat and in the last minute."""

    about: Mapping[str, Any] = field(default_factory=dict)
    last: Work | None = None
    minute: Work | None = None
    #: The last time when the worker was alive, in Unix seconds.
    seen_at: float = 0.0
    _beats: list[Mapping[str, Any]] = field(default_factory=list)

    def update(self, about: Mapping[str, Any]) -> None:
        """Add a heartbeat. It may be the same as the last one.

        A heartbeat without a time gives no measurements. Earlier heartbeats are dropped after `WINDOW_S`, and if they
        have a later time, because Redis's clock was set back.
        """
        self.about = about
        now_s = written_at(about)
        if now_s is None or (self._beats and self._beats[-1]["written_at"] == now_s):
            return
        beats = [beat for beat in self._beats if now_s - WINDOW_S <= beat["written_at"] < now_s]
        measured = {name: about[name] for name in _MEASURED if name in about}  # the rest may take megabytes
        self.last = Work.between(beats[-1], measured) if beats else None
        self.minute = Work.between(beats[0], measured) if beats else None
        self._beats = [*beats, measured]


class PoolMeter:
    """The meter of one pool, which measures from one snapshot to the next. For one thread.

    `num_cached` returns the number of texts that the caller itself has found in the cache. Workers never see them.
    """

    def __init__(self, num_cached: Callable[[], float] = lambda: 0):
        self._num_cached = num_cached
        self._meters: dict[str, WorkerMeter] = {}
        self._cached: deque[tuple[float, float]] = deque()  # pairs of a time and the value of `num_cached`

    def measure(self, pool: PoolSnapshot) -> dict[str, Any]:
        """Return the figures of the pool in the form of `GET /v1/pool` in docs/http.md. Unknown figures are None."""
        self._update(pool)
        alive = [self._meters[worker_id] for worker_id in pool.workers]
        minute = [meter.minute for meter in alive if meter.minute]
        return {
            "time": pool.time_s,
            "lanes": [{"lane": lane, **asdict(pool.loads[lane]), **_waits(lane, minute, alive)} for lane in LANES],
            "workers": [
                _describe_worker(name, meter, name in pool.workers) for name, meter in sorted(self._meters.items())
            ],
            "num_dead": pool.num_dead,
            "recent": _recent_jobs(pool.workers),
            "rates": self._rates(alive, minute),
        }

    def _update(self, pool: PoolSnapshot) -> None:
        """Add the heartbeats of a snapshot, and forget workers that have been dead for too long."""
        for worker_id, about in pool.workers.items():
            meter = self._meters.setdefault(worker_id, WorkerMeter())
            meter.update(about)
            meter.seen_at = pool.time_s
        gone = sorted((meter.seen_at, name) for name, meter in self._meters.items() if name not in pool.workers)
        for n, (seen_at, worker_id) in enumerate(reversed(gone)):
            if n >= MAX_GONE or seen_at <= pool.time_s - GONE_S:
                del self._meters[worker_id]
        # Later times are dropped too, because Redis's clock may have been set back.
        while self._cached and not pool.time_s - WINDOW_S < self._cached[0][0] < pool.time_s:
            self._cached.popleft()
        self._cached.append((pool.time_s, self._num_cached()))

    def _rates(self, alive: Sequence[WorkerMeter], minute: Sequence[Work]) -> dict[str, float | None]:
        """Return the rates of all workers together, from the last two heartbeats. `cache_hit_rate` covers a minute."""
        last = [meter.last for meter in alive if meter.last]
        is_known = bool(last) or not alive
        rates = {name: _rate(last, counter) if is_known else None for name, counter in _RATES.items()}
        seconds, num_cached = (now - then for now, then in zip(self._cached[-1], self._cached[0], strict=True))
        if seconds > 0 and rates["cached_texts_per_s"] is not None:
            rates["cached_texts_per_s"] += num_cached / seconds
        num_hits = _sum(minute, "cache_hits") + num_cached  # the caller's misses reach a worker
        return {
            "num_workers": len(alive),
            **rates,
            "busy": _busy(last),
            "cache_hit_rate": _ratio(num_hits, num_hits + _sum(minute, "cache_misses")),
            **{name: _ratio(_sum(last, name), _sum(last, "jobs")) for name in TIMINGS},
        }


def _describe_worker(worker_id: str, meter: WorkerMeter, is_alive: bool) -> dict[str, Any]:
    """Return the figures of a worker. A worker that is no longer alive has the state `gone` and no rates."""
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
    """Return quantiles of the waits of the lane's jobs in the last minute, and the longest wait, in seconds.

    The quantiles are estimates, which never exceed the longest wait.
    """
    longest_waits = [longest for meter in meters if (longest := typed(meter.about, "longest_waits", dict))]
    longest_s = max((s for longest in longest_waits if (s := typed(longest, lane, _Number)) is not None), default=None)
    waits = total(of_worker.waits[lane] for of_worker in work if lane in of_worker.waits)
    found: dict[str, float | None] = {"wait_p50_s": None, "wait_p95_s": None, "wait_max_s": longest_s}
    for name, share in (("wait_p50_s", 0.5), ("wait_p95_s", 0.95)):
        if waits and (wait_s := waits.quantile(share)) is not None:
            found[name] = wait_s if longest_s is None else min(wait_s, longest_s)
    return found


def _sum(work: Iterable[Work], counter: str) -> float:
    return sum(of_worker.counters.get(counter, 0.0) for of_worker in work)


def _rate(work: Iterable[Work], counter: str) -> float:
    """Return a counter's rise in a second, summed over the workers."""
    return sum(of_worker.counters.get(counter, 0.0) / of_worker.seconds for of_worker in work)


def _busy(work: Iterable[Work]) -> float | None:
    """Return the share of the time in which engines computed, averaged over `work`.

    A forward pass counts wholly between the two heartbeats around its end, although it may have begun earlier. So each
    share is limited to 1.
    """
    shares = [min(1.0, of_worker.counters.get("busy_s", 0.0) / of_worker.seconds) for of_worker in work]
    return _ratio(sum(shares), len(shares))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _recent_jobs(abouts: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the jobs that the workers with these heartbeats answered last, newest first, each with its `worker`.

    Jobs without the documented fields and types are left out.
    """
    jobs = []
    for worker_id, about in abouts.items():
        for job in (typed(about, "recent", list) or ())[:_MAX_JOBS]:
            if isinstance(job, dict) and _is_sound(job):
                timings = typed(job, "timings", dict) or {}
                times = {name: timings[name] for name in TIMINGS if isinstance(timings.get(name), int | float)}
                known = {name: typed(job, name, type_) for name, type_ in _JOB_FIELDS.items()}
                jobs.append(known | {"worker": worker_id, "timings": times})
    return sorted(jobs, key=lambda job: -job["ended_at"])


def _is_sound(job: Mapping[str, Any]) -> bool:
    has_types = all(isinstance(job.get(name), type_) for name, type_ in _JOB_FIELDS.items())
    return has_types and job["status"] in STATUSES and isfinite(job["ended_at"])


def _since(before: Mapping[str, Any], now: Mapping[str, Any], field: str, name: str) -> Histogram:
    """Return the histogram of the values that were measured between two heartbeats."""
    later, earlier = Histogram.from_map(now[field][name]), before.get(field, {}).get(name)
    return later.minus(Histogram.from_map(earlier)) if earlier else later


def typed(values: Mapping[str, Any], name: str, type_: Any) -> Any:
    """Return a value of a heartbeat, or None if it has another type. A long string is cut."""
    value = values.get(name)
    if isinstance(value, str):
        value = value[:MAX_CHARS]
    return value if isinstance(value, type_) else None


def written_at(about: Mapping[str, Any]) -> float | None:
    """Return the time of a heartbeat, by Redis's clock in Unix seconds, or None if it is unknown."""
    time_s = about.get("written_at")
    return float(time_s) if isinstance(time_s, int | float) and 0 < time_s < 2**40 else None
