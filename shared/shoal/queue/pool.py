"""Who is alive: workers announce themselves with a heartbeat, and everybody else reads who there is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal import wire
from shoal.broker.connections import Script, translated
from shoal.errors import ShoalError
from shoal.keys import Keys

#: How long a worker counts as alive after its last heartbeat.
ALIVE_S = 3.0

_ANNOUNCE = Script.load("announce")


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers of one pool."""

    redis: Any
    keys: Keys
    alive_s: float = field(default=ALIVE_S)

    def announce(self, worker_id: str, about: dict[str, Any]) -> None:
        """Says that the worker is alive, and what it serves."""
        names = (self.keys.workers, self.keys.worker(worker_id))
        with translated():
            self.redis.eval(_ANNOUNCE.text, len(names), *names, worker_id, wire.pack(about), int(self.alive_s * 1000))

    def leave(self, worker_id: str) -> None:
        """Takes a worker off the list."""
        with translated(), self.redis.pipeline(transaction=False) as pipeline:  # a full Redis refuses transactions
            pipeline.srem(self.keys.workers, worker_id)
            pipeline.delete(self.keys.worker(worker_id))
            pipeline.execute()

    def workers(self) -> dict[str, dict[str, Any]]:
        """What each living worker says of itself, by its id; those whose heartbeat stopped are forgotten."""
        with translated():
            members = sorted(self.redis.smembers(self.keys.workers))
            ids = [member.decode(errors="replace") for member in members]
            beats = self.redis.mget([self.keys.worker(worker_id) for worker_id in ids]) if ids else []
            alive = {worker_id: _read(beat) for worker_id, beat in zip(ids, beats, strict=True) if beat is not None}
            self._forget([member for member, beat in zip(members, beats, strict=True) if beat is None])
        return alive

    def ready(self) -> dict[str, dict[str, Any]]:
        """The living workers that have their model and indexes open."""
        return {worker_id: about for worker_id, about in self.workers().items() if about.get("state") == "ready"}

    def texts_per_s(self) -> float:
        """How fast the living workers answer, as they measured it lately."""
        return sum(float(about.get("texts_per_s", 0.0)) for about in self.workers().values())

    def _forget(self, members: Sequence[bytes]) -> None:
        if members:
            self.redis.srem(self.keys.workers, *members)


def _read(beat: bytes) -> dict[str, Any]:
    """What a heartbeat says; nothing, if it is not of the documented shape."""
    try:
        about = wire.unpack(beat)
    except ShoalError:
        return {}
    return about if _is_sound(about) else {}


def _is_sound(about: dict[str, Any]) -> bool:
    """Whether JSON can hold it, and what others calculate with or look into is of its type."""
    indexes, counters = about.get("indexes", {}), about.get("counters", {})
    return (
        wire.is_json(about)
        and isinstance(about.get("prompts", []), list)
        and isinstance(indexes, dict)
        and all(isinstance(index, dict) and isinstance(index.get("count"), int) for index in indexes.values())
        and isinstance(counters, dict)
        and all(isinstance(number, int | float) for number in (*counters.values(), about.get("texts_per_s", 0.0)))
    )
