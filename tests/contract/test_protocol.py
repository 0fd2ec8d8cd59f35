"""A worker does what docs/protocol.md and its examples say, and the tables of both pages are complete."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from math import ceil
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import redis
from conftest import PATIENCE_S
from job_names import JOB_NAMES
from page import read
from queues import Queue, drive, queue_of, set_limits, work_off

from shoal import operations
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.contract.options import OPTION_NAMES
from shoal.contract.outline import MAX_FIELDS
from shoal.contract.replies import STATUSES, TIMINGS, Reply
from shoal.errors import ShoalError, UnknownJob
from shoal.operations import OPERATIONS
from shoal.operations.search import MAX_K
from shoal.operations.search_options import SEARCH_NAMES
from shoal.queue import scripts
from shoal.queue.consumer import Answer
from shoal.queue.lane import LaneLimits
from shoal.queue.pool import ALIVE_S
from shoal.records.source import Source
from shoal.settings import Settings
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.reranker import Reranker
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.document_encoder import LocalEncoder
from shoal_workers.index.index import Index
from shoal_workers.loop.admission import MAX_DEATHS
from shoal_workers.loop.worker import Worker
from shoal_workers.service import service

PAGE = read("docs/protocol.md") + read("docs/architecture.md")
VECTORS = {(vector["kind"], vector["name"]): vector for vector in json.loads(read("docs/vectors.json"))}
BLOCKS: dict[str, str] = dict(re.findall(r"^```(\w.*?)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
JOB_EXAMPLES = [name for kind, name in VECTORS if kind == "job"]
TYPES = {"int": int, "float": float, "bool": bool, "str": str, "array": list, "map": dict, "nil": type(None)}

MINIMAL: dict[str, Any] = {"v": 1, "id": "x", "op": "embed", "texts": ["storm"]}

#: For each of these codes, a job that a worker refuses with it. The other codes need more, and other tests check them.
REFUSED: dict[str, dict[str, Any]] = {
    "malformed_job": {"v": 1, "id": "x", "op": "embed"},
    "unsupported_version": MINIMAL | {"v": 2},
    "invalid_request": MINIMAL | {"op": "translate"},
    "too_large": MINIMAL | {"texts": ["a"] * (Settings().max_job_texts + 1)},
    "text_too_long": MINIMAL | {"texts": ["storm " * 60], "truncate": False},
    "unknown_index": MINIMAL | {"op": "search", "index": "news"},
    "model_mismatch": MINIMAL | {"fingerprint": "f"},
    "expired": MINIMAL | {"deadline": 1},
}
OTHER_CODES = {"cancelled", "invalid_text", "poisoned", "internal", "unsupported", "index_corrupt"}

UNREADABLE: dict[str, bytes] = {
    "empty": b"",
    "not msgpack": b"\xc1",
    "an id that is cut off": msgpack.packb({"v": 1, "id": "x" * 40})[:-1],
    "no id": msgpack.packb({"v": 1, "op": "embed", "texts": ["storm"]}),
    "a bad id": msgpack.packb(MINIMAL | {"id": "a b"}),
    "an id after too many fields": msgpack.packb({str(n): n for n in range(MAX_FIELDS)} | {"id": "x"}),
}

#: Jobs whose id can be read but not all other fields, with the code of the reply.
DAMAGED: dict[str, tuple[str, bytes]] = {
    "two maps": ("malformed_job", msgpack.packb(MINIMAL) * 2),
    "cut off": ("malformed_job", msgpack.packb(MINIMAL)[:-1]),
    "an extension type": ("malformed_job", msgpack.packb(MINIMAL | {"x": msgpack.ExtType(5, b"")})),
    "deep": ("malformed_job", msgpack.packb(MINIMAL)[:-1].replace(b"\x84", b"\x85") + b"m\xa1x" + b"\x91" * 5_000),
    "a byte that is not UTF-8": ("invalid_text", msgpack.packb(MINIMAL).replace(b"storm", b"st\xf6rm")),
    "no version": ("unsupported_version", msgpack.packb({"id": "x"})),
    "keys that are byte strings": ("malformed_job", msgpack.packb({b"v": 1, "id": "x", b"op": "embed"})),
    "a deadline in milliseconds": ("invalid_request", msgpack.packb(MINIMAL | {"deadline": 2e12})),
    "a reply_to with spaces": ("invalid_request", msgpack.packb(MINIMAL | {"reply_to": "a b"})),
}


def example(kind: str, name: str) -> bytes:
    return bytes.fromhex(VECTORS[kind, name]["hex"])


def table(heading: str, section: str = "") -> dict[str, list[str]]:
    """Return the first table with this heading of its first column, keyed by this column without backticks."""
    body = PAGE.split(f"\n## {section}")[1] if section else PAGE
    body = body.split(f"\n| {heading} |", 1)[1].split("\n\n", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in body.splitlines()[2:]]
    return {first.strip("`"): [cell.strip() for cell in rest] for first, *rest in rows}


def codes_of_replies() -> set[str]:
    listed = PAGE.split("A reply can have these codes:")[1].partition(". ")[0]
    return set(re.findall(r"`(\w+)`", listed))


def fits(value: object, words: str) -> bool:
    """Return True if a value has the type that the page names, such as `array of str` or `float, int or nil`."""
    outer, _, inner = words.partition(" of ")
    if inner:
        return type(value) is TYPES[outer] and all(fits(item, inner) for item in value)  # type: ignore[attr-defined]
    return type(value) in [TYPES[word] for word in re.split(", | or ", words)]


@pytest.fixture(scope="module")
def index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("index")
    rows = [{"id": n, "text": text, "year": 2020 + n} for n, text in enumerate(["storm in europe", "rain", "market"])]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = Source(folder / "rows.jsonl")
    build(source, folder / "built", LocalEncoder(encoder))
    return Index.open(folder / "built")


@pytest.fixture
def worker(queue: Queue, encoder: Encoder, index: Index, reranker: Reranker) -> Worker:
    return Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), reranker=reranker)


def add(queue: Queue, data: bytes, lane: str = "interactive") -> Any:
    return queue.redis.rpush(queue.keys.lane(lane), data)


def answer(worker: Worker, data: bytes) -> dict[str, Any]:
    """Let a worker make one step for a job; return the reply's map from the job's address or its result."""
    job = msgpack.unpackb(data, unicode_errors="replace")
    add(queue_of(worker), data)
    worker.step(block_s=0)
    keys, address = queue_of(worker).keys, job.get("reply_to")
    if address:
        ((_, ((_, fields),)),) = queue_of(worker).redis.xread({keys.replies(address): 0})
        reply = fields[b"reply"]
    else:
        (reply,) = queue_of(worker).redis.lrange(keys.result(job["id"]), 0, -1)
    assert not any(queue_of(worker).backlog().values())
    return dict(msgpack.unpackb(reply))


# The examples


@pytest.mark.parametrize("name", JOB_EXAMPLES)
def test_a_job_example_is_what_the_client_packs_and_its_reply_has_the_fields_of_the_page(
    worker: Worker, name: str
) -> None:
    values = VECTORS["job", name]["json"]
    assert operations.job_class(values["op"]).of_map(values).pack() == example("job", name)
    job, reply = msgpack.unpackb(example("job", name)), answer(worker, example("job", name))
    kinds = {"all", "errors"} if "error" in reply else {"all", "done", job["op"], f"output `{job.get('output')}`"}
    rows = table("Field", "The reply")
    assert reply.keys() == {field for field, row in rows.items() if kinds & {*row[1].split(" or ")}}
    assert all(fits(value, rows[field][0]) for field, value in reply.items())
    assert (reply["v"], reply["id"]) == (1, job["id"])
    if name == "unknown-index":
        assert queue_of(worker).redis.lindex(queue_of(worker).keys.result("q-2"), 0) == example("reply", "error")


def test_the_client_reads_the_reply_examples() -> None:
    names = ("vectors", "hits", "scores", "error", "cancelled")
    vectors, hits, scores, error, cancelled = (Reply.unpack(example("reply", name)) for name in names)
    assert vectors.vectors is not None
    np.testing.assert_array_equal(vectors.vectors, np.array([[1, 0, 0], [0.6, -0.8, 0]], np.float32))
    assert vectors.pack() == example("reply", "vectors")
    outputs = Reply.unpack(example("reply", "outputs"))
    assert [[part.tolist() for part in vector] for vector in outputs.sparse or ()] == [
        [[7, 2183], [0.5, 1.25]],
        [[9], [2]],
    ]
    assert [rows.shape for rows in outputs.multivectors or ()] == [(2, 2), (1, 2)]
    assert outputs.pack() == example("reply", "outputs")
    assert hits.hits is not None
    assert hits.hits[0][0] == {"id": "17", "score": 0.75, "text": "storm hits coast", "year": 2021}
    assert hits.index_version == "20261121T030000Z-5d41c7"
    assert hits.pack() == example("reply", "hits")
    assert scores.scores is not None
    assert scores.scores.tolist() == [0.75, 0.03125]
    assert scores.pack() == example("reply", "scores")
    assert (error.status, error.error and error.error.code) == ("failed", "unknown_index")
    assert (cancelled.status, cancelled.error and cancelled.error.code) == ("cancelled", "cancelled")


# The program and the scripts


@pytest.fixture
def run_producer(worker: Worker, redis_url: str, tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs a program of the page beside the worker, and returns its output."""

    def run(block: str, server: str, own_server: str, *command: str | Path) -> str:
        program = BLOCKS[block].replace("shoal:{default}", queue_of(worker).keys.root)
        (tmp_path / "producer").write_text(program.replace(server, own_server))
        with subprocess.Popen(
            [command[0], tmp_path / "producer", *command[1:]], stdout=subprocess.PIPE, text=True
        ) as producer:
            assert any(worker.step(block_s=1) for _ in range(20))
            output, _ = producer.communicate(timeout=PATIENCE_S)
        return str(output)

    return run


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="there is no redis-cli")
def test_the_producer_in_bash(run_producer: Callable[..., str], redis_url: str) -> None:
    port = redis_url.rpartition(":")[2].partition("/")[0]
    output = run_producer("bash producer", "-p 6390", f"-p {port}", "bash", "storm in é " * 40)
    assert "storm in europe" in output
    assert "done" in output


def test_the_producer_in_python(worker: Worker, run_producer: Callable[..., str], redis_url: str) -> None:
    queue_of(worker).pool.announce("w", service.about(worker))
    own = f"redis.Redis.from_url({redis_url!r})"
    assert "'status': 'done'" in run_producer("python producer", "redis.Redis(port=6390)", own, sys.executable)


def test_a_reply_names_the_fields_that_were_ignored(worker: Worker) -> None:
    job = MINIMAL | {"filters": {}, "k": 3, "x" * 100: 1, "normalize": True}
    assert answer(worker, msgpack.packb(job))["ignored"] == ["filters", "k", "x" * 64]
    assert "ignored" not in answer(worker, msgpack.packb(MINIMAL | {"id": "y", "op": "search", "k": 1}))
    many = {f"f{n:02}": n for n in range(20)}
    assert len(answer(worker, msgpack.packb(MINIMAL | {"id": "z"} | many))["ignored"]) == 16


def test_workers_keep_the_scripts_and_the_limits_in_redis(queue: Queue, worker: Worker, keys: Keys) -> None:
    queue.redis.hset(keys.scripts, mapping={"put": "of an old version", "digest": "another"})
    queue.pool.announce("w", service.about(worker, LaneLimits(max_jobs=7)))
    texts = {name.decode(): text.decode() for name, text in queue.redis.hgetall(keys.scripts).items()}
    assert texts == scripts.PUBLISHED
    limits = {name.decode(): int(most) for name, most in queue.redis.hgetall(keys.limits).items()}
    assert limits == service.about(worker)["limits"] | {"max_jobs": 7}
    job = {"id": "a", "job": b"x", "texts": 1}
    jobs = [job | {"id": f"j{n}"} for n in range(8)]
    asked: dict[str, Any] = {"lane": "bulk", "client": "me", "jobs": jobs}
    assert run_script(queue, "put", **asked) == {"status": "too_large", "exceeded": "jobs", "asked": 8, "most": 7}
    assert run_script(queue, "put", **asked | {"jobs": [job]}) == {"status": "ok", "is_new": [True]}
    queue.redis.hset(keys.limits, "max_put_bytes", 3)
    large = {"status": "too_large", "exceeded": "bytes", "asked": 4, "most": 3}
    assert run_script(queue, "put", **asked | {"jobs": [job | {"id": "b", "job": b"abcd"}]}) == large


def run_script(queue: Queue, name: str, *, keys: Sequence[str] | None = None, **arguments: Any) -> Any:
    names = [queue.keys.root] if keys is None else keys
    packed = msgpack.packb(arguments, use_bin_type=False)
    return msgpack.unpackb(queue.redis.eval(scripts.PUBLISHED[name], len(names), *names, packed))


def put(queue: Queue, jobs: list[dict[str, Any]], **arguments: Any) -> Any:
    """Put jobs into the bulk lane by the published script, as the page says, and return the script's result."""
    asked: dict[str, Any] = {"lane": "bulk", "client": "me", "jobs": jobs} | arguments
    return run_script(queue, "put", **asked)


def cancel(queue: Queue, job_id: str | None) -> Any:
    return run_script(queue, "cancel", id=job_id)


def test_put_with_a_record_and_cancel(queue: Queue, worker: Worker, keys: Keys) -> None:
    job = {"id": "q-1", "job": example("job", "search"), "texts": 33}
    assert put(queue, [job]) == {"status": "ok", "is_new": [True]}
    assert put(queue, [job]) == {"status": "ok", "is_new": [False]}
    record = queue.redis.hgetall(keys.record("q-1"))
    assert record.keys() == {b"status", b"client", b"job", b"lane", b"texts", b"put_ms"}
    assert cancel(queue, "q-1") == {"status": "cancelled"}
    assert worker.step(block_s=0) == 0
    packed = queue.redis.lindex(keys.result("q-1"), 0)
    assert msgpack.unpackb(packed) == msgpack.unpackb(example("reply", "cancelled"))
    assert queue.status("q-1")[0] == "cancelled"
    assert queue.redis.ttl(keys.result("q-1")) in (3_599, 3_600)
    assert cancel(queue, "none") == {"is_unknown": True}


def test_a_job_with_an_address_can_have_a_record(worker: Worker, keys: Keys) -> None:
    queue, mixed = queue_of(worker), []
    for job_id, keeps_status in (("a", True), ("b", False), ("c", True)):
        data = msgpack.packb(MINIMAL | {"id": job_id})
        mixed.append({"id": job_id, "job": data, "texts": 1, "keeps_status": keeps_status, "reply_to": "me"})
    assert put(queue, mixed)["status"] == "ok"
    assert [queue.redis.hget(keys.record(job_id), "status") for job_id in "abc"] == [b"queued", None, b"queued"]
    assert cancel(queue, "c") == {"status": "cancelled"}
    work_off(worker, queue)
    replies = [msgpack.unpackb(fields[b"reply"]) for _, fields in queue.redis.xrange(keys.replies("me"))]
    assert [(reply["id"], reply["status"]) for reply in replies[1:]] == [("a", "done"), ("b", "done")]
    assert replies[0]["status"] == "cancelled"
    assert [queue.redis.hget(keys.record(job_id), "status") for job_id in "abc"] == [b"done", None, b"cancelled"]
    with pytest.raises(UnknownJob, match='its reply goes to the address "me"'):
        queue.wait_result("a", 0)
    assert not queue.redis.exists(*(keys.result(job_id) for job_id in "abc"))


@pytest.mark.parametrize("fields", [{}, {"normalize": "yes"}])
def test_the_script_alone_says_where_a_reply_goes(worker: Worker, keys: Keys, fields: dict[str, Any]) -> None:
    queue, job = queue_of(worker), MINIMAL | fields | {"reply_to": "elsewhere"}
    put(queue, [{"id": "x", "job": msgpack.packb(job)}])
    put(queue, [{"id": "y", "job": msgpack.packb(job | {"id": "y"}), "reply_to": "me"}])
    work_off(worker, queue)
    assert queue.redis.llen(keys.result("x")) == queue.redis.xlen(keys.replies("me")) == 1
    assert not queue.redis.exists(keys.replies("elsewhere"))


def test_a_refusal_says_whether_waiting_helps(queue: Queue) -> None:
    job = {"id": "a", "job": b"x" * 10, "texts": 7}
    assert put(queue, [job])["status"] == "ok"
    for what, load, size in (("jobs", 1, 1), ("texts", 7, 7), ("bytes", 10, 10)):
        set_limits(queue, replace(LaneLimits(), **{f"max_{what}": load + size - 1}))
        most = ceil(7 / 8 * (load + size - 1))
        full = {"status": "full", "exceeded": what, "asked": size, "own": load, "most": most}
        assert put(queue, [job | {"id": "b"}]) == full | {"jobs": 1, "texts": 7, "bytes": 10}
        set_limits(queue, replace(LaneLimits(), **{f"max_{what}": size}))
        two = [job | {"id": "b"}, job | {"id": "c"}]
        assert put(queue, two) == {
            "status": "too_large",
            "exceeded": what,
            "asked": 2 * size,
            "most": ceil(7 / 8 * size),
        }
    for words in ("full", "too_large"):
        assert words in table("`status` of the result")


def put_once(queue: Queue, job_id: str, digest: str = "digest", client: str = "me", key: str = "k", **job: Any) -> Any:
    data = msgpack.packb(MINIMAL | {"id": job_id} | job.pop("fields", {}))
    once = {"key": key, "digest": digest, "owner": job.pop("owner", None)}
    return put(queue, [{"id": job_id, "job": data, **job}], client=client, once=once)


def test_put_once(queue: Queue, keys: Keys) -> None:
    assert put_once(queue, "one")["status"] == "ok"
    assert put_once(queue, "two") == {"status": "known", "id": "one"}
    assert put_once(queue, "two", reply_to="me") == {"status": "known", "id": "one"}
    assert put_once(queue, "two", client="me in another process", owner="me") == {"status": "known", "id": "one"}
    assert put_once(queue, "three", "another") == {"status": "reused", "id": "one"}
    assert put_once(queue, "four", client="me\0k")["status"] == "ok"  # names and keys are not confused
    assert put_once(queue, "five", key="k\0k")["status"] == "ok"
    assert queue.backlog()["bulk"] == 3
    known = {name.decode() for name in queue.redis.hgetall(keys.record("one"))}
    assert known < table("Field of the record").keys()


@pytest.mark.parametrize("job", [{}, {"reply_to": "me"}])
def test_an_idempotency_key_is_free_again_when_its_job_came_to_nothing(
    queue: Queue, worker: Worker, job: dict[str, Any]
) -> None:
    put_once(queue, "one", **job)
    assert cancel(queue, "one") == {"status": "cancelled"}
    assert put_once(queue, "two", "another", fields={"timeout_s": 0}, **job)["status"] == "ok"
    assert put_once(queue, "three", "another") == {"status": "known", "id": "two"}
    drive(worker)
    assert queue.status("two")[0] == "expired"
    assert put_once(queue, "three")["status"] == "ok"
    drive(worker)
    assert put_once(queue, "four") == {"status": "known", "id": "three"}


def test_another_programs_key_with_the_name_of_an_idempotency_key_is_named(queue: Queue, keys: Keys) -> None:
    name = hashlib.sha1(b"me\0k").hexdigest()
    queue.redis.set(keys.once(name), b"x", ex=60)
    with pytest.raises(redis.ResponseError, match=rf":once:{name} holds something else: WRONGTYPE"):
        put(queue, [ONE_JOB], once=ONCE)
    assert queue.backlog()["bulk"] == 0


ONE_JOB = {"id": "a", "job": b"x", "texts": 1}
ONCE = {"key": "k", "digest": "d"}

#: Wrong arguments of `put`, and the beginning of the error.
WRONG_PUTS: list[tuple[dict[str, Any], str]] = [
    ({"lane": "urgent"}, "lane is urgent: it takes interactive or bulk"),
    ({"client": None}, "client is missing: it takes a string"),
    ({"client": "c" * 257}, "client is c{80}: it takes a string of at most 256 bytes"),
    ({"jobs": [ONE_JOB, None, ONE_JOB | {"id": "b"}]}, "jobs is a map or an array: it takes an array .* and no nil"),
    ({"jobs": []}, "jobs is a map or an array: it takes an array with at least one element"),
    ({"jobs": ["a"]}, r"jobs\[0\] is a: it takes a map"),
    ({"jobs": [ONE_JOB, ONE_JOB | {"id": None}]}, r"jobs\[1\].id is missing: it takes 1 to 128 of"),
    ({"jobs": [ONE_JOB | {"id": "a" * 129}]}, r"jobs\[0\].id is a{80}: it takes"),
    ({"jobs": [ONE_JOB | {"job": None}]}, r"jobs\[0\].job is missing: it takes a string"),
    ({"jobs": [ONE_JOB | {"texts": 1.5}]}, r"jobs\[0\].texts is 1.5: it takes a whole number"),
    ({"jobs": [ONE_JOB | {"texts": float("nan")}]}, r"jobs\[0\].texts is -?nan: it takes a whole number"),
    ({"jobs": [ONE_JOB | {"texts": 1_000_000}]}, r"jobs\[0\].texts is 1000000: it takes .* from 1 to 999,999"),
    ({"jobs": [ONE_JOB | {"keeps_status": 1}]}, r"jobs\[0\].keeps_status is 1: it takes true or false"),
    ({"jobs": [ONE_JOB | {"reply_to": "a b"}]}, r"jobs\[0\].reply_to is a b: it takes 1 to 128"),
    ({"once": 5}, "once is 5: it takes a map"),
    ({"once": ONCE | {"key": ""}}, "once.key is : it takes a string of 1 to 1,024 bytes"),
    ({"once": ONCE | {"owner": 5}}, "once.owner is 5: it takes a string of at most 256 bytes"),
    ({"once": ONCE | {"digest": 5}}, "once.digest is 5: it takes a string of at most 256 bytes"),
    ({"once": ONCE, "jobs": [ONE_JOB, ONE_JOB]}, "once goes with one job, and jobs has 2"),
    ({"keys": []}, "give one key"),
    ({"keys": ["shoal:{a}"] * 2}, "give one key"),
    ({"keys": ["shoal"]}, "the key is no root of a pool"),
]


def test_a_wrong_key_or_argument_is_named(queue: Queue, keys: Keys) -> None:
    for arguments, message in WRONG_PUTS:
        with pytest.raises(redis.ResponseError, match=f"^{message}"):
            put(queue, **{"jobs": [ONE_JOB]} | arguments)
    for job_id, message in ((None, "id is missing: it takes 1 to 128"), ("a b", "id is a b: it")):
        with pytest.raises(redis.ResponseError, match=f"^{message}"):
            cancel(queue, job_id)
    for value, found in (("x", "missing"), ("-1", "-1")):
        queue.redis.hset(keys.limits, "max_bytes", value)
        with pytest.raises(redis.ResponseError, match=rf"limits.max_bytes is {found}: it takes"):
            put(queue, [ONE_JOB])
    for given in ([], [b"\xc1"], [msgpack.packb("x")], [msgpack.packb({"client": b"bin"})]):
        with pytest.raises(redis.ResponseError, match="cannot read the argument, one msgpack map: write byte strings"):
            queue.redis.eval(scripts.PUT.text, 1, keys.root, *given)
    assert not queue.redis.exists(keys.of_lane("bulk", "load"), keys.record("a"))
    assert queue.backlog()["bulk"] == 0


@pytest.mark.parametrize("address", [None, "me"])
def test_a_cancel_that_cannot_be_told_changes_nothing(queue: Queue, keys: Keys, address: str | None) -> None:
    put(queue, [ONE_JOB | ({"reply_to": address, "keeps_status": True} if address else {})])
    other = keys.replies(address) if address else keys.result("a")
    queue.redis.set(other, "junk", ex=60)
    with pytest.raises(redis.ResponseError, match=f"^{re.escape(other)} holds something else"):
        cancel(queue, "a")
    assert queue.status("a")[0] == "queued"
    assert queue.backlog()["bulk"] == 1


@pytest.mark.parametrize("name", ["unread", "unread_load"])
def test_results_are_written_although_they_cannot_be_counted(queue: Queue, keys: Keys, name: str) -> None:
    put(queue, [ONE_JOB, ONE_JOB | {"id": "b"}])
    queue.redis.set(getattr(keys, name), "junk", ex=60)
    assert cancel(queue, "a") == {"status": "cancelled"}
    queue.reply([Answer(one, Reply(one.key)) for one in queue.take("w", ["bulk"], 9)])
    assert [queue.status(job_id)[0] for job_id in "ab"] == ["cancelled", "done"]


@pytest.mark.parametrize("name", ["jobs", "of:me"])
def test_a_put_into_a_lane_with_another_programs_key_puts_nothing(queue: Queue, keys: Keys, name: str) -> None:
    other = keys.of_lane("bulk", name)
    queue.redis.set(other, "junk")
    with pytest.raises(redis.ResponseError, match=f"^{re.escape(other)} holds something else"):
        put(queue, [ONE_JOB, ONE_JOB | {"id": "long", "texts": 33}])
    queue.redis.delete(other)
    assert queue.backlog()["bulk"] == 0
    assert not queue.redis.exists(keys.record("a"))


def test_before_any_worker_a_lane_has_the_default_limits(queue: Queue) -> None:
    in_script = re.search(r"^local BEFORE_WORKERS = {(.*?)}", scripts.PUT.text, re.MULTILINE | re.DOTALL)
    assert in_script is not None
    found = {name: int(number) for name, number in re.findall(r"(\w+) = (\d+)", in_script[1])}
    assert found == LaneLimits().to_map() | {"result_ttl_s": Settings().result_ttl_s}
    assert queue.limits() == LaneLimits()
    set_limits(queue, LaneLimits(1, 2, 3, 4))
    assert queue.limits() == LaneLimits(1, 2, 3, 4)


def test_a_result_can_be_read_in_several_ways(worker: Worker, keys: Keys) -> None:
    server, key = queue_of(worker).redis, keys.result("q-1")
    add(queue_of(worker), example("job", "search"), "bulk")
    assert server.hget(keys.record("q-1"), "status") is None
    worker.step(block_s=0)
    assert server.hget(keys.record("q-1"), "status") == b"done"
    assert server.lindex(key, 0) == server.blmove(key, key, 1, "LEFT", "LEFT") == server.blpop([key], 1)[1]
    assert server.exists(key) == 0
    assert server.hgetall(keys.record("q-1")).keys() == {b"status", b"timings", b"client"}


def test_a_job_that_is_pushed_twice_before_its_answer_is_done_once(queue: Queue, worker: Worker, keys: Keys) -> None:
    for _ in range(2):
        add(queue, msgpack.packb(MINIMAL))
    assert worker.step(block_s=0) == 1
    assert not any(queue.backlog().values())
    add(queue, msgpack.packb(MINIMAL))
    assert worker.step(block_s=0) == 1
    assert queue.redis.llen(keys.result("x")) == 2


def test_reading_a_result_does_not_touch_another_job_with_its_id(queue: Queue, worker: Worker, keys: Keys) -> None:
    add(queue, msgpack.packb(MINIMAL))
    assert worker.step(block_s=0) == 1
    add(queue, msgpack.packb(MINIMAL))
    assert queue.start("w", queue.take("w", ["interactive"], 9)) == [True]
    assert queue.wait_result("x", 0) is not None
    assert queue.redis.ttl(keys.record("x")) == -1
    assert queue.status("x")[0] == "running"


def test_a_job_that_is_pushed_with_the_id_of_another_does_it_no_harm(queue: Queue, worker: Worker, keys: Keys) -> None:
    put(queue, [{"id": "x", "job": msgpack.packb(MINIMAL), "texts": 1}])
    for data in (MINIMAL | {"texts": 5}, MINIMAL):
        queue.redis.rpush(keys.lane("interactive"), msgpack.packb(data))
    deliveries = queue.take("w", ["interactive"], 9)
    started = queue.consumer("w").start([(one, "x") for one in deliveries])
    assert started == [False, False]
    assert queue.status("x")[0] == "queued"
    queue.leave("w")
    work_off(worker, queue)
    assert queue.redis.llen(keys.result("x")) == 1
    assert queue.status("x")[0] == "done"


# Errors and dead letters


def error_of(queue: Queue, job_id: str) -> ShoalError:
    reply = queue.wait_result(job_id, 0)
    assert reply is not None
    assert reply.error is not None
    return reply.error


def test_a_refused_job_is_answered_with_its_code(worker: Worker) -> None:
    for code, job in REFUSED.items():
        reply = answer(worker, msgpack.packb(job | {"id": code}))
        assert reply["error"]["code"] == code
        assert reply["status"] == ("expired" if code == "expired" else "failed")


def test_a_job_whose_id_can_be_read_is_answered_whatever_else_is_wrong(
    queue: Queue, worker: Worker, keys: Keys
) -> None:
    for code, data in DAMAGED.values():
        add(queue, data)
        worker.step(block_s=0)
        assert error_of(queue, "x").code == code
        assert queue.status("x")[0] == "failed"
        assert 0 < queue.redis.ttl(keys.record("x")) <= 60
        queue.redis.delete(keys.result("x"))
    assert not queue.redis.exists(keys.dead)


#: Values of all types. Each field of a job accepts only a few of them.
ANY_TYPE = [None, True, -1, 10**6, 1.5, "", "no such", b"bin", [], [1], ["a"], [None], {}, {"a": 1}]

#: Words of Python that mean nothing in other languages.
PYTHON_WORDS = re.compile(
    r"NoneType|\b(None|True|False|dict|int|str|tuple|float|bool)\b|Error|Exception|strict_map_key"
)


def test_messages_on_the_wire_name_no_types_of_python(worker: Worker) -> None:
    queue, num_jobs = queue_of(worker), 0

    def answer_all() -> int:
        num = int(queue.redis.llen(queue.keys.lane("interactive")))
        work_off(worker, queue)
        return num

    for op in ("embed", "search"):
        for name in ("v", *sorted({*JOB_NAMES, *OPTION_NAMES, *SEARCH_NAMES} - {"id"})):
            for value in ANY_TYPE:
                add(queue, msgpack.packb({**MINIMAL, "op": op, "reply_to": "me", name: value}))
        num_jobs += answer_all()  # now, because only one of several unanswered jobs with one id gets a result
    for _, data in [*DAMAGED.values(), *((code, msgpack.packb(job)) for code, job in REFUSED.items())]:
        add(queue, data)
    num_jobs += answer_all()
    streams = [name for name in queue.redis.scan_iter(f"{queue.keys.root}:replies:*")]
    packed = [fields[b"reply"] for name in streams for _, fields in queue.redis.xrange(name)]
    packed += queue.redis.lrange(queue.keys.result("x"), 0, -1)
    assert len(packed) == num_jobs
    errors = [reply["error"] for data in packed if "error" in (reply := msgpack.unpackb(data))]
    assert len(errors) > num_jobs / 2
    assert {error["code"] for error in errors} <= codes_of_replies()
    assert [error["message"] for error in errors if PYTHON_WORDS.search(error["message"])] == []


def test_a_job_that_was_put_by_the_script_is_answered_although_its_bytes_have_no_id(worker: Worker, keys: Keys) -> None:
    for n, data in enumerate(UNREADABLE.values()):
        put(queue_of(worker), [{"id": f"x{n}", "job": data, "texts": 1}])
        worker.step(block_s=0)
        assert error_of(queue_of(worker), f"x{n}").message
        assert queue_of(worker).status(f"x{n}")[0] == "failed"
    assert not queue_of(worker).redis.exists(keys.dead)


def test_a_job_that_was_put_under_another_id_is_refused_under_that_id(worker: Worker, keys: Keys) -> None:
    job = {"id": "y", "job": msgpack.packb(MINIMAL), "texts": 1}
    put(queue_of(worker), [job])
    worker.step(block_s=0)
    error = error_of(queue_of(worker), "y")
    assert error.message == 'the job has id "x", and was put as "y": use the same id'
    assert not queue_of(worker).redis.exists(keys.record("x"))


def test_an_unreadable_job_becomes_a_dead_letter(worker: Worker, keys: Keys) -> None:
    for data in UNREADABLE.values():
        add(queue_of(worker), data)
        worker.step(block_s=0)
        ((_, letter),) = queue_of(worker).redis.xrevrange(keys.dead, count=1)
        assert {name.decode() for name in letter} == table("Field", "Dead letters").keys()
        assert letter[b"job"] == data
        assert re.match(rb"[a-z_]+: .", letter[b"reason"])
        assert not any(queue_of(worker).backlog().values())


# The tables are complete


def test_every_code_lane_status_limit_and_field_of_a_reply_is_listed() -> None:
    assert codes_of_replies() == {*REFUSED, *OTHER_CODES}
    assert tuple(table("Lane")) == LANES
    assert table("Status").keys() == set(STATUSES)
    assert table("Field", "The reply").keys() == {"v", *(item.name for item in fields(Reply))}
    assert table("Timing").keys() == set(TIMINGS)
    settings = Settings()
    limits = [settings.max_job_texts, settings.max_text_chars, settings.max_backlog, settings.result_ttl_s]
    assert [number for number in (*limits, 86_400, MAX_K) if f"{number:,}" not in PAGE] == []
    assert f"{ALIVE_S:g} s after its last heartbeat" in PAGE
    assert f"{MAX_DEATHS} workers have died with it" in PAGE


def test_every_field_of_a_job_is_listed() -> None:
    """Options are described in docs/http.md; this page only names them."""
    rows = table("Field", "The job")
    assert rows.keys() == {"v", *JOB_NAMES}
    assert [name for name in OPTION_NAMES if f"`{name}`" not in PAGE] == []
    defaults = {item.name: item.default for kind in OPERATIONS.values() for item in fields(kind)}
    for name, (kind, default, _) in rows.items():
        if default != "required":
            value = json.loads(default.strip("`").replace("nil", "null"))
            assert value == defaults[name]
            assert fits(value, kind)


def test_every_field_of_a_heartbeat_is_listed(worker: Worker) -> None:
    about, rows = service.about(worker), table("Field", "What workers tell")
    assert {name: int(size.replace(",", "")) for name, (size, _) in table("Limit").items()} == about["limits"]
    assert about.keys() == rows.keys()
    assert all(fits(value, rows[name][0]) for name, value in about.items())
    assert all(f"`{name}`" in rows["indexes"][1] for name in about["indexes"]["default"])
