"""A producer written from docs/protocol.md alone. It needs only a Redis client and msgpack."""

import hashlib
import json
import secrets
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import redis
from conftest import PATIENCE_S


def packed(value: Any, **options: Any) -> bytes:
    """Return the msgpack bytes of a value."""
    return bytes(msgpack.packb(value, **options))


class PlainProducer:
    """A producer that runs every example of the page. `found` has the values that it got."""

    def __init__(self, connection: Any, root: str, vectors: Path):
        self.redis = connection
        self.root = root
        self.found: dict[str, Any] = {}
        self.vectors = json.loads(vectors.read_text("utf-8"))
        self.scripts = {name: self.redis.hget(f"{root}:scripts", name) for name in ("put", "cancel")}

    def run(self, name: str, arguments: dict[str, Any]) -> Any:
        """Return the result of a script, and load the script if Redis does not know it."""
        text, given = self.scripts[name], (1, self.root, packed(arguments, use_bin_type=False))
        try:
            return msgpack.unpackb(self.redis.evalsha(hashlib.sha1(text).hexdigest(), *given))
        except redis.exceptions.NoScriptError:
            return msgpack.unpackb(self.redis.eval(text, *given))

    def put(self, lane: str, *jobs: dict[str, Any], **more: Any) -> Any:
        """Put entries into a lane."""
        return self.run("put", {"lane": lane, "client": "plain", "jobs": jobs, **more})

    def refusal(self, lane: str, job: dict[str, Any], **more: Any) -> str:
        """Return the error of a put."""
        try:
            return str(self.put(lane, job, **more))
        except redis.ResponseError as error:
            return str(error)

    def entry(self, reply_to: str | None = None, keeps_status: bool | None = None, **fields: Any) -> dict[str, Any]:
        """Return an entry with a new job."""
        job = {"v": 1, "id": secrets.token_hex(12), "op": "embed", "texts": ["storm in europe"], **fields}
        return {"id": job["id"], "job": packed(job), "texts": 1, "reply_to": reply_to, "keeps_status": keeps_status}

    def status(self, entry: dict[str, Any]) -> str:
        """Return the status of a job."""
        return (self.redis.hget(f"{self.root}:job:{entry['id']}", "status") or b"none").decode()

    def result(self, entry: dict[str, Any]) -> Any:
        """Take the reply of a job from its result list."""
        taken = self.redis.blpop([f"{self.root}:result:{entry['id']}"], PATIENCE_S)
        return msgpack.unpackb(taken[1])

    def replies(self, address: str, count: int) -> dict[str, Any]:
        """Read this number of replies at an address, and delete them."""
        key, found = f"{self.root}:replies:{address}", dict[str, Any]()
        while len(found) < count:
            streams = self.redis.xread({key: 0}, 1_000, int(PATIENCE_S * 1_000))
            for place, fields in streams[0][1]:
                reply = msgpack.unpackb(fields[b"reply"])
                found[reply["id"]] = reply
                self.redis.xdel(key, place)
        return found

    def before_a_worker(self) -> None:
        """Run the examples without a worker: pack, read, put, put again, cancel, and be refused."""
        assert self.redis.ping()
        assert self.redis.script_load(self.scripts["cancel"])
        ids = self.redis.zrange(f"{self.root}:alive", 0, -1)
        beats = [
            msgpack.unpackb(beat) for beat in self.redis.mget([f"{self.root}:worker:{one.decode()}" for one in ids])
        ]
        most = beats[0]["limits"]["max_texts"]
        assert beats[0]["state"] == "ready"
        assert self.redis.hget(f"{self.root}:limits", "max_texts") == str(most).encode()
        of_kind = {kind: [one for one in self.vectors if one["kind"] == kind] for kind in ("job", "reply")}
        assert [packed(one["json"]).hex() for one in of_kind["job"]] == [one["hex"] for one in of_kind["job"]]
        replies = [msgpack.unpackb(bytes.fromhex(one["hex"])) for one in of_kind["reply"]]
        assert next(rows(reply) for reply in replies if "vectors" in reply)[0].tolist() == [1, 0, 0]
        self.found["replies"] = [reply["status"] for reply in replies]

        self.mixed = [self.entry("address", True), self.entry("address"), self.entry()]
        self.found["put"] = self.put("interactive", *self.mixed)["is_new"]
        self.found["again"] = self.put("interactive", self.mixed[0])
        self.found["queued"] = list(map(self.status, self.mixed))
        self.unwanted = [self.entry("address", True), self.entry()]
        self.put("bulk", *self.unwanted)
        cancelled = [*self.unwanted, self.unwanted[1], self.entry()]
        self.found["cancelled"] = [self.run("cancel", {"id": one["id"]}) for one in cancelled]
        self.kept, once = self.entry(), {"key": "a key", "digest": "a"}
        keyed = [(self.kept, "a"), (self.entry(), "a"), (self.entry(), "b")]
        self.found["once"] = [self.put("bulk", one, once=once | {"digest": digest})["status"] for one, digest in keyed]
        self.found["too_large"] = self.put("bulk", self.entry() | {"texts": most + 1})["status"]
        self.found["errors"] = [
            self.refusal("bulk", self.entry() | {"texts": "one"}),
            self.refusal("bulk", self.entry(), once=once | {"key": ""}),
            self.refusal("slow", self.entry()),
        ]

    def with_a_worker(self) -> None:
        """Run the examples with a worker: read replies in each way, and push jobs."""
        answers = self.replies("address", 3)
        first, second, third = self.mixed
        self.found["answers"] = [answers[one["id"]]["status"] for one in (first, second, self.unwanted[0])]
        self.found["done"] = [self.status(first), self.status(second)]
        vectors = rows(answers[first["id"]])
        assert abs(np.linalg.norm(vectors) - 1) < 1e-4
        assert np.array_equal(rows(self.result(third)), vectors)
        assert self.result(self.kept)["status"] == "done"
        self.found["examples"] = dict(map(self.push, [one for one in self.vectors if one["kind"] == "job"]))
        now_s = self.redis.time()[0]
        late = [
            self.entry("address", **fields)
            for fields in ({"deadline": now_s - 1}, {"timeout_s": 0}, {"normalise": True})
        ]
        self.put("interactive", *late)
        timely = self.replies("address", 3)
        self.found["deadlines"] = [timely[one["id"]]["status"] for one in late]
        self.found["ignored"] = timely[late[2]["id"]]["ignored"]
        broken = self.entry() | {"job": b"\xc1"}
        self.put("bulk", broken)
        self.found["broken"] = self.result(broken)["error"]
        self.found["broken_status"] = self.status(broken)

    def push(self, example: dict[str, Any]) -> tuple[str, Any]:
        """Push an example of a job; return its id, and the code of its error or the size of its result."""
        data = bytes.fromhex(example["hex"])
        job = msgpack.unpackb(data)
        self.redis.rpush(f"{self.root}:lane:interactive", data)
        self.redis.rpush(f"{self.root}:lane:interactive:wake", 1)
        if job.get("reply_to"):
            reply = self.replies(job["reply_to"], 1)[job["id"]]
        else:
            key = f"{self.root}:result:{job['id']}"
            taken = self.redis.blmove(key, key, int(PATIENCE_S), "LEFT", "LEFT")
            reply = msgpack.unpackb(taken)
            assert self.redis.lindex(key, 0) == taken
            assert self.redis.expire(key, 60)
        if "error" in reply:
            return job["id"], reply["error"]["code"]
        lists = [reply[name] for name in ("hits", "scores") if name in reply]
        return job["id"], len(lists[0][0] if "hits" in reply else lists[0]) if lists else len(rows(reply))


def rows(reply: dict[str, Any]) -> np.ndarray:
    """Return the vectors of a reply."""
    found = reply["vectors"]
    return np.frombuffer(found["data"], "<f4").reshape(found["shape"])
