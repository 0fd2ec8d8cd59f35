"""The workers of a pool: each announces itself, and every process can read which are alive and what they serve.

That a worker is alive is written every second and read often, so it is one number in Redis. What it serves has
kilobytes: it is written every few seconds, and read by few and rarely.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal import wire
from shoal.broker.broker import Broker
from shoal.broker.script import Script
from shoal.errors import ShoalError
from shoal.keys import Keys

#: Time for which a worker counts as alive after its last heartbeat.
ALIVE_S = 3.0

#: Time for which a heartbeat is kept, in times of `ALIVE_S`: it is written less often than that its worker is alive.
_KEPT_FOR = 5

_ANNOUNCE, _ALIVE = (Script.load("shoal.queue", "lane", name) for name in ("announce", "alive"))


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers of one pool."""

    broker: Broker
    keys: Keys
    alive_s: float = field(default=ALIVE_S)
    _first: dict[str, dict[str, Any]] = field(default_factory=dict)

    def announce(self, worker_id: str, about: dict[str, Any] | None = None) -> bool:
        """Announce that the worker is alive, with the contents of its heartbeat or, to say less, without.

        Return False if Redis does not have the contents: then they are needed next time.
        """
        alive_ms = int(self.alive_s * 1000)
        arguments: dict[str, Any] = {"worker": worker_id, "alive_ms": alive_ms, "kept_ms": _KEPT_FOR * alive_ms}
        if about is not None:
            arguments["about"] = wire.pack(about)
        return bool(self.broker.run(_ANNOUNCE, [self.keys.alive, self.keys.worker(worker_id)], arguments)["has_about"])

    def leave(self, worker_id: str) -> None:
        """Take a worker off the list."""
        self.broker.pipeline(("ZREM", self.keys.alive, worker_id), ("DEL", self.keys.worker(worker_id)))

    def alive(self) -> set[str]:
        """Return the ids of the living workers."""
        return {member.decode(errors="replace") for member in self.broker.run(_ALIVE, [self.keys.alive], {})["workers"]}

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return the heartbeat of each living worker by its id."""
        return self._heartbeats(sorted(self.alive()))

    def first_heartbeats(self) -> dict[str, dict[str, Any]]:
        """Return for each living worker the heartbeat that was read first: for fields that a worker never changes.

        Only heartbeats of new workers are read.
        """
        ids = self.alive()
        new = self._heartbeats(sorted(ids - self._first.keys()))
        for worker_id in self._first.keys() - ids:
            self._first.pop(worker_id, None)
        self._first.update(new)
        return {worker_id: about for worker_id in sorted(ids) if (about := self._first.get(worker_id)) is not None}

    def ready(self) -> dict[str, dict[str, Any]]:
        """Return the heartbeats of the living workers that have their model and indexes open."""
        return {worker_id: about for worker_id, about in self.workers().items() if about.get("state") == "ready"}

    def texts_per_s(self) -> float:
        """Return the texts per second of all living workers, as they measured it lately."""
        return sum(float(about.get("texts_per_s", 0.0)) for about in self.workers().values())

    def _heartbeats(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the heartbeats of the workers, without those that Redis does not have."""
        beats = self.broker.execute("MGET", *map(self.keys.worker, ids)) if ids else []
        return {worker_id: _read(beat) for worker_id, beat in zip(ids, beats, strict=True) if beat is not None}


def _read(beat: bytes) -> dict[str, Any]:
    """Return the contents of a heartbeat; an empty map if it is not of the documented shape."""
    try:
        about = wire.unpack(beat)
    except ShoalError:
        return {}
    return about if _is_sound(about) else {}


def _is_sound(about: dict[str, Any]) -> bool:
    """Return True if JSON can hold it, and every field that readers calculate with or look into is of its type."""
    indexes, counters = about.get("indexes", {}), about.get("counters", {})
    return (
        wire.is_json(about)
        and isinstance(about.get("prompts", []), list)
        and isinstance(indexes, dict)
        and all(isinstance(index, dict) and isinstance(index.get("count"), int) for index in indexes.values())
        and isinstance(counters, dict)
        and all(isinstance(number, int | float) for number in (*counters.values(), about.get("texts_per_s", 0.0)))
    )
