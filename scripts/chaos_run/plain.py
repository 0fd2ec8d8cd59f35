"""A producer written from docs/protocol.md alone: a Redis client, and the script that workers keep in Redis."""

from functools import cached_property
from typing import Any

import msgpack
import numpy as np
import redis
from redis.cluster import ClusterNode
from redis.sentinel import Sentinel

from chaos_run.answers import K
from chaos_run.cases import Case
from shoal.errors import BY_CODE
from shoal.settings import Settings

#: Bytes that are not a job.
GARBAGE = b"\xc1 no job "


class Plain:
    """A producer that uses the documented script and keys. Thread-safe. Every method raises redis.RedisError."""

    def __init__(self, url: str, settings: Settings):
        self._url = url
        self._root = settings.keys.root

    @cached_property
    def _redis(self) -> Any:
        return _client(self._url)

    @cached_property
    def _put(self) -> Any:
        if (text := self._redis.hget(f"{self._root}:scripts", "put")) is None:
            raise redis.RedisError("no worker has kept the script yet")
        return self._redis.register_script(text)

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def put(self, case: Case, deadline: float | None = None) -> str:
        """Put the case and return its id: several puts make one job."""
        job_id = f"plain-{case.number}"
        return self._run(case, job_id, _job(case, job_id, deadline=deadline))

    def put_with_address(self, case: Case) -> str:
        """Put the case with its own address for the reply. Return no id, because the job has no record."""
        address = f"address-{case.number}"
        self._run(case, address, _job(case, address), reply_to=address)
        return ""

    def put_unreadable(self, case: Case) -> str:
        """Put bytes that are not a job. The script notes the id for the answer; return the id."""
        return self._run(case, f"unreadable-{case.number}", GARBAGE + case.texts[0].encode())

    def put_garbage(self, case: Case) -> str:
        """Push bytes that are not a job. Return no id, because a job that is pushed without the script has none."""
        self._redis.rpush(f"{self._root}:lane:{case.lane}", GARBAGE + case.texts[0].encode())
        return ""

    def result(self, job_id: str) -> Any:
        """Return the vectors or hits of a job, or None while there are none. Raises the error in the reply."""
        data = self._redis.lindex(f"{self._root}:result:{job_id}", 0)
        return data and _content(data)

    def reply(self, case: Case) -> Any:
        """Return the vectors or hits of a case with an address, or None while there are none."""
        streams = self._redis.xread({f"{self._root}:replies:address-{case.number}": 0})
        return _content(streams[0][1][0][1][b"reply"]) if streams else None

    def _run(self, case: Case, job_id: str, data: bytes, reply_to: str | None = None) -> str:
        job = {"id": job_id, "job": data, "texts": len(case.texts), "reply_to": reply_to}
        arguments = {"lane": case.lane, "client": "plain", "jobs": [job]}
        outcome = msgpack.unpackb(self._put([self._root], [msgpack.packb(arguments, use_bin_type=False)]))
        if outcome["status"] != "ok":
            raise redis.RedisError(f"refused: {outcome}")
        return job_id


def _client(url: str) -> Any:
    """Return redis-py's client for one Redis, for a primary that Sentinels watch, or for a cluster."""
    limits: Any = {"socket_timeout": 6, "socket_connect_timeout": 2}
    kind, _, rest = url.partition("://")
    names, _, service = rest.partition("/")
    if "+" not in kind:
        return redis.Redis.from_url(url, **limits)
    nodes = [(host, int(port)) for host, _, port in (name.partition(":") for name in names.split(","))]
    if kind.endswith("sentinel"):
        sentinel: Any = Sentinel(nodes, sentinel_kwargs=limits)  # type: ignore[no-untyped-call]
        return sentinel.master_for(service, **limits)
    return redis.RedisCluster(startup_nodes=[ClusterNode(*node) for node in nodes], **limits)  # type: ignore[no-untyped-call]


def _job(case: Case, job_id: str, **fields: Any) -> bytes:
    job = {"v": 1, "id": job_id, "op": case.op, "texts": case.texts}
    job |= {"k": K} if case.op == "search" else {"output": case.output}
    return bytes(msgpack.packb(job | fields))


def _content(data: bytes) -> Any:
    reply = msgpack.unpackb(data)
    if error := reply.get("error"):
        raise BY_CODE[error["code"]](error["message"])
    vectors = reply.get("vectors")
    return reply["hits"] if vectors is None else np.frombuffer(vectors["data"], "<f4").reshape(vectors["shape"])
