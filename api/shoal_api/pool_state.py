"""The workers of the pool and their indexes, as the routes report them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from shoal_api.context import context

Heartbeats = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class PoolState:
    """The heartbeats of the workers that are alive, by the worker's id, as read at one moment."""

    workers: Heartbeats

    @classmethod
    def read(cls) -> Self:
        """Read the heartbeats from Redis; raises Unavailable without it."""
        return cls(context().client.pool.workers())

    @property
    def ready(self) -> Heartbeats:
        """The workers that take jobs."""
        return {worker_id: about for worker_id, about in self.workers.items() if about.get("state") == "ready"}

    @property
    def indexes(self) -> dict[str, dict[str, Any]]:
        """Every index that a ready worker serves, by its name and in order of the names."""
        found = {name: about for worker in self.ready.values() for name, about in worker.get("indexes", {}).items()}
        return dict(sorted(found.items()))

    def describe_states(self) -> str:
        """Return how many workers are in each state: "1 loading, 2 stalled"."""
        states = Counter(str(about.get("state", "unknown")) for about in self.workers.values())
        return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
