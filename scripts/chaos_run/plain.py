"""A producer made of docs/protocol.md alone: a Redis client and the script of that page."""

import re
from pathlib import Path
from typing import Any

import msgpack
import redis

from chaos_run.answers import K
from chaos_run.cases import Case
from shoal.queue.put import MAX_FRONT_TEXTS
from shoal.settings import Settings

_PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"

#: Bytes that are no job.
GARBAGE = b"\xc1 no job "


class Plain:
    """A producer that uses the documented script, and reads the documented keys. Thread-safe."""

    def __init__(self, url: str, settings: Settings):
        self._redis: Any = redis.Redis.from_url(url, socket_timeout=6, socket_connect_timeout=2)
        self._root = settings.keys.root
        blocks = dict(re.findall(r"```lua script (\w+)\n(.*?)```", _PAGE.read_text(), re.DOTALL))
        self._put = self._redis.register_script(blocks["lane"] + blocks["put"])

    def put(self, case: Case, job_id: str, deadline: float | None = None, reply_to: str | None = None) -> None:
        """Put a job; without an address for the reply it is one job however often it is put.

        Raises redis.RedisError.
        """
        job = {"v": 1, "id": job_id, "op": case.op, "texts": case.texts, "deadline": deadline, "reply_to": reply_to}
        data = msgpack.packb(job | ({"k": K} if case.op == "search" else {}))
        self._run(case, job_id, data, *([] if reply_to else [f"{self._root}:job:{job_id}"]))

    def put_garbage(self, case: Case) -> None:
        """Put bytes that are no job.

        Raises redis.RedisError.
        """
        self._run(case, f"garbage-{case.number}", GARBAGE + case.texts[0].encode())

    def results(self, job_id: str) -> list[dict[str, Any]]:
        """Return the replies to a job without an address for them.

        Raises redis.RedisError.
        """
        return [msgpack.unpackb(data) for data in self._redis.lrange(f"{self._root}:result:{job_id}", 0, -1)]

    def replies(self, address: str) -> list[dict[str, Any]]:
        """Return the replies at an address.

        Raises redis.RedisError.
        """
        streams = self._redis.xread({f"{self._root}:replies:{address}": 0})
        return [msgpack.unpackb(fields[b"reply"]) for _, entries in streams for _, fields in entries]

    def close(self) -> None:
        """Drop its connections."""
        self._redis.close()

    def _run(self, case: Case, job_id: str, data: bytes, *records: str) -> None:
        lane = f"{self._root}:lane:{case.lane}"
        keys = [lane, *(f"{lane}:{name}" for name in ("overflow", "waiting", "places", "tags", "load")), *records]
        limits = {"max_jobs": 10_000, "max_texts": 100_000, "max_bytes": 2**28, "max_front_texts": MAX_FRONT_TEXTS}
        job = {"id": job_id, "job": data, "texts": len(case.texts)}
        arguments = limits | {"client": "plain", "has_records": bool(records), "jobs": [job]}
        self._put(keys, [msgpack.packb(arguments, use_bin_type=False)])
