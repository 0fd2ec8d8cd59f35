"""The workers of a pool: each announces itself with a heartbeat, and every process can read the list."""

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

_ANNOUNCE = Script.load("shoal.queue", "announce")


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers of one pool."""

    broker: Broker
    keys: Keys
    alive_s: float = field(default=ALIVE_S)

    def announce(self, worker_id: str, about: dict[str, Any]) -> None:
        """Announce that the worker is alive, with the contents of its heartbeat."""
        arguments = {"worker": worker_id, "about": wire.pack(about), "ttl_ms": int(self.alive_s * 1000)}
        self.broker.run(_ANNOUNCE, [self.keys.workers, self.keys.worker(worker_id)], arguments)

    def leave(self, worker_id: str) -> None:
        """Take a worker off the list."""
        self.broker.pipeline(("SREM", self.keys.workers, worker_id), ("DEL", self.keys.worker(worker_id)))

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return the heartbeat of each living worker by its id; remove workers without one from the list."""
        members = sorted(self.broker.execute("SMEMBERS", self.keys.workers))
        ids = [member.decode(errors="replace") for member in members]
        beats = self.broker.execute("MGET", *map(self.keys.worker, ids)) if ids else []
        self._forget([member for member, beat in zip(members, beats, strict=True) if beat is None])
        return {worker_id: _read(beat) for worker_id, beat in zip(ids, beats, strict=True) if beat is not None}

    def ready(self) -> dict[str, dict[str, Any]]:
        """Return the heartbeats of the living workers that have their model and indexes open."""
        return {worker_id: about for worker_id, about in self.workers().items() if about.get("state") == "ready"}

    def texts_per_s(self) -> float:
        """Return the texts per second of all living workers, as they measured it lately."""
        return sum(float(about.get("texts_per_s", 0.0)) for about in self.workers().values())

    def _forget(self, members: Sequence[bytes]) -> None:
        if members:
            self.broker.execute("SREM", self.keys.workers, *members)


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
