"""The workers of a pool. Each writes heartbeats that say what it serves, and every process can read them."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from socket import gethostname
from typing import Any

from shoal.broker.async_broker import AsyncBroker
from shoal.broker.broker import Broker
from shoal.contract import wire
from shoal.contract.histogram import Histogram
from shoal.contract.keys import Keys
from shoal.errors import Overloaded, ShoalError
from shoal.queue import scripts

#: Seconds for which a worker counts as alive after its last heartbeat.
ALIVE_S = 3.0

#: States in which a worker answers jobs. When a job comes, `shoal host` starts a worker that is asleep.
ANSWERING = ("ready", "asleep")

#: Limits of a heartbeat: its bytes, and the values in its arrays and maps. A thousand indexes need a tenth of this.
MAX_BYTES, MAX_VALUES = 2**22, 2**18

_NUMBER = int | float

#: The types of fields of a heartbeat. A field may be missing.
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("state", "model", "engine", "precision", "host"), str),
    **dict.fromkeys(("prompts", "outputs", "recent", "rounds"), list),
    **dict.fromkeys(("indexes", "index_errors", "counters", "waits", "batches"), dict),
    **{"threads": int, "pid": int, "texts_per_s": _NUMBER, "memory_bytes": int | None, "written_at": _NUMBER | None},
}

_ANNOUNCE = scripts.load("announce")


class AsyncPool:
    """The living workers of one pool, for clients."""

    def __init__(self, commands: AsyncBroker, keys: Keys):
        self._commands = commands
        self._keys = keys
        self._first: dict[str, dict[str, Any]] = {}

    async def alive(self) -> set[str]:
        """Return the ids of the living workers."""
        return _living(*await self._commands.pipeline(*_ask_living(self._keys.alive)))

    async def workers(self) -> dict[str, dict[str, Any]]:
        """Return the heartbeat of each living worker by its id."""
        return await self._heartbeats(sorted(await self.alive()))

    async def first_heartbeats(self) -> dict[str, dict[str, Any]]:
        """Return, for each living worker, the first of its heartbeats that this object read."""
        ids = await self.alive()
        new = await self._heartbeats(sorted(ids - self._first.keys()))
        found = self._first | new
        self._first = {worker_id: found[worker_id] for worker_id in sorted(ids & found.keys())}
        return self._first

    async def texts_per_s(self) -> float:
        """Return the sum of the speeds that the living workers have measured since their start."""
        return sum(float(about.get("texts_per_s", 0.0)) for about in (await self.workers()).values())

    async def _heartbeats(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        return _read_all(ids, await self._commands.execute("MGET", *map(self._keys.worker, ids)) if ids else [])


class Pool:
    """The living workers of one pool, as workers see them; they also announce themselves here. Thread-safe."""

    def __init__(self, broker: Broker, keys: Keys, alive_s: float = ALIVE_S):
        self.broker = broker
        self.keys = keys
        self.alive_s = alive_s

    def alive(self) -> set[str]:
        """Return the ids of the living workers."""
        return _living(*self.broker.pipeline(*_ask_living(self.keys.alive)))

    def sharing(self, group: str) -> set[str]:
        """Return the ids of the living workers of a group that shares processors."""
        return _living(*self.broker.pipeline(*_ask_living(self.keys.processors(group))))

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return the heartbeat of each living worker by its id."""
        ids = sorted(self.alive())
        return _read_all(ids, self.broker.execute("MGET", *map(self.keys.worker, ids)) if ids else [])

    def announce(self, worker_id: str, about: dict[str, Any] | None = None, group: str = "") -> int:
        """Announce that the worker is alive, with its heartbeat `about`. Return the number of workers of its group.

        Redis also gets the heartbeat's `limits` and the scripts, for programs that put jobs. `group` is the id of the
        workers that share this worker's processors.
        """
        limits = (about or {}).get("limits")
        numbers = {k: n for k, n in limits.items() if type(n) is int} if isinstance(limits, dict) else {}
        arguments: dict[str, Any] = {
            "worker": worker_id,
            "alive_ms": int(self.alive_s * 1000),
            "about": wire.pack(about or {}),
            "limits": [part for limit in numbers.items() for part in limit],
            "digest": scripts.DIGEST,
        }
        if group:
            arguments["group"] = group
        found = self.broker.run(_ANNOUNCE, [self.keys.root], arguments)
        if not found["has_scripts"]:
            texts = [part for script in scripts.PUBLISHED.items() for part in script]
            with suppress(Overloaded):  # the next heartbeat tries again
                self.broker.execute("HSET", self.keys.scripts, *texts)
        return int(found["num_sharing"])

    def leave(self, worker_id: str, group: str = "") -> None:
        """Remove a worker from the lists of living workers."""
        commands = [("ZREM", self.keys.alive, worker_id), ("DEL", self.keys.worker(worker_id))]
        if group:
            commands.append(("ZREM", self.keys.processors(group), worker_id))
        self.broker.pipeline(*commands)

    def ready(self) -> dict[str, dict[str, Any]]:
        """Return the heartbeats of the living workers that answer jobs, sleeping workers included."""
        return {worker_id: about for worker_id, about in self.workers().items() if about.get("state") in ANSWERING}

    def own_ready(self, pids: Collection[int]) -> dict[str, dict[str, Any]]:
        """Return the workers of `ready` that run on this machine as one of the processes `pids`."""
        host = gethostname()
        return {n: about for n, about in self.ready().items() if about.get("host") == host and about.get("pid") in pids}


def _ask_living(key: str) -> tuple[tuple[Any, ...], ...]:
    return ("TIME",), ("ZRANGE", key, 0, -1, "WITHSCORES")  # a script would need permission to write the keys


def _living(time: tuple[bytes, bytes], members: Sequence[bytes]) -> set[str]:
    now_ms = 1_000 * int(time[0]) + int(time[1]) // 1_000
    pairs = zip(members[::2], members[1::2], strict=True)
    return {name.decode(errors="replace") for name, until in pairs if float(until) > now_ms}


def _read_all(ids: Sequence[str], beats: Sequence[bytes | None]) -> dict[str, dict[str, Any]]:
    return {worker_id: _read(beat) for worker_id, beat in zip(ids, beats, strict=True) if beat is not None}


def _read(beat: bytes) -> dict[str, Any]:
    """Return the contents of a heartbeat, or an empty map if it is too large or lacks the documented shape."""
    if len(beat) > MAX_BYTES:
        return {}
    try:
        about = wire.unpack(beat, MAX_VALUES)
    except ShoalError:
        return {}
    return about if _is_sound(about) else {}


def _is_sound(about: dict[str, Any]) -> bool:
    """Return True if JSON can represent `about`, and its fields have the types on which readers depend."""
    if not wire.is_json(about) or not all(isinstance(about[name], _TYPES[name]) for name in about.keys() & _TYPES):
        return False
    try:
        for name in ("waits", "batches"):
            for histogram in about.get(name, {}).values():
                Histogram.from_map(histogram)
    except ValueError:
        return False
    indexes, jobs = about.get("indexes", {}).values(), about.get("recent", ())
    numbers = [*about.get("counters", {}).values(), *(rounds := about.get("rounds", ()))]
    return (
        all(isinstance(index, dict) and isinstance(index.get("count"), int) for index in indexes)
        and all(isinstance(message, str) for message in about.get("index_errors", {}).values())
        and all(isinstance(job, dict) and isinstance(job.get("client"), str) for job in jobs)
        and all(isinstance(number, _NUMBER) for number in [*numbers, *(job.get("ended_at") for job in jobs)])
        and len(rounds) in (0, 5)
        and all(0 <= total < 2**63 for total in rounds)  # larger totals could have infinite squares
    )
