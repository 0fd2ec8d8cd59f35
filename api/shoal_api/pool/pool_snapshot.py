"""The state of a pool at one time, for `GET /v1/pool` and for metrics."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from shoal.queue.lane import LaneLimits, LaneLoad, UnreadLoad
from shoal.queue.producer import Producer

#: The fields of a heartbeat that `GET /v1/pool` shows unchanged.
_WORKER_FIELDS = (
    *("model", "engine", "precision", "threads", "host", "pid"),
    *("texts_per_s", "memory_bytes", "written_at", "counters"),
)


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
        """Read the pool in seven round trips, for any number of workers. Raises Unavailable without Redis."""
        return cls(
            loads=await queue.loads(),
            limits=await queue.limits(),
            unread=await queue.unread_load(),
            num_dead=await queue.num_dead(),
            workers=await queue.pool.workers(),
            time_s=await queue.now(),
        )

    def describe(self) -> dict[str, Any]:
        """Return the pool in the form of `GET /v1/pool` in docs/http.md. Fields that a heartbeat lacks are None."""
        recent = [job | {"worker": name} for name, about in self.workers.items() for job in about.get("recent", ())]
        return {
            "time": self.time_s,
            "lanes": [{"lane": lane, **asdict(load)} for lane, load in self.loads.items()],
            "workers": [
                {"id": name, "state": about.get("state", "unknown")}
                | {word: about.get(word) for word in _WORKER_FIELDS}
                for name, about in sorted(self.workers.items())
            ],
            "num_dead": self.num_dead,
            "recent": sorted(recent, key=lambda job: -job["ended_at"]),
        }
