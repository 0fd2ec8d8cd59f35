"""Any bytes from Redis are read correctly or refused with an error of Shoal, and a worker goes on after them."""

import pickle
import resource
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import msgpack
import numpy as np
import pytest
from blocking import Pool
from fuzzing import ODD, TEXTS, changed, fuzz, mutated, outcome, packed
from hypothesis import strategies as st
from queues import Queue

from shoal import operations
from shoal.cache.cache import Table
from shoal.contract import wire
from shoal.contract.jobs import LANES, Job, check_name
from shoal.contract.options import Options
from shoal.contract.outline import Outline
from shoal.contract.replies import TIMINGS, Reply
from shoal.errors import InvalidText, MalformedJob, ShoalError, TooLarge
from shoal.operations import Embed, Search
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.reranker import Reranker
from shoal_workers.index.index import Index
from shoal_workers.loop.worker import Worker

REPLY = Reply(
    "a",
    vectors=np.ones((2, 3), np.float32),
    tokens=[1, 2],
    truncated=[True, False],
    characters=[5, 7],
    timings=dict.fromkeys(TIMINGS, 0.1),
)
FOUND = Reply("b", hits=[[{"id": "1", "score": 0.5, "text": "storm", "more": {"a": [1]}}]], tokens=[3], model="m")
REPLIES = st.sampled_from([REPLY.pack(), FOUND.pack(), Reply.failure("c", MalformedJob("why")).pack()])
TABLE = Table("m", 3, "mean", "print", 7, {"query": "q: "}, "")
ABOUT: dict[str, Any] = {"state": "ready", "model": "m", "dimension": 3, "pooling": "mean"}
ABOUT |= {"cache": TABLE.to_heartbeat()}
ABOUT |= {"indexes": {"default": {"count": 1}}, "counters": {"jobs": 1}, "prompts": ["query"], "texts_per_s": 2.0}
ABOUT |= {"waits": {"bulk": {"limits": [0.5, 2], "counts": [3, 0, 1], "sum": 10.5}}, "batches": {}, "memory_bytes": 1}
ABOUT |= {"written_at": 5.0, "rounds": [1.0] * 5, "recent": [{"id": "a", "timings": {"queue_s": 0.5}}]}


def test_a_false_length_needs_no_memory_and_a_lack_of_memory_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    claims = [b"\x81\xa1a" + marker + b"\xff" * 4 for marker in (b"\xc6", b"\xdb", b"\xdd", b"\xdf", b"\xc9")]
    claims += [b"\x81\xa1a" + b"\xdd\x00\x0f\x00\x00" * 1_000 + b"\xc0" * 2**20]  # a thousand lists of a million each
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in claims:
        assert isinstance(outcome(wire.unpack, data), MalformedJob)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # in KB
    monkeypatch.setattr(msgpack, "unpackb", Mock(side_effect=MemoryError))
    assert isinstance(outcome(wire.unpack, b"\x80"), MalformedJob)


# Replies

USUAL = {"id": "a", "status": "done", "tokens": [1, 1], "truncated": [True], "characters": [1], "timings": {}}
SHAPES = st.lists(st.integers(-3, 9) | st.integers(-(2**63), 2**64 - 1) | st.just(True) | st.just(2.0), max_size=4)

#: Fields of a reply, to be changed.
ARRAYS: dict[str, dict[str, Any]] = {
    "vectors": {"dtype": "float32", "shape": [2, 3], "data": b"\0" * 24},
    "sparse": {"lengths": [2, 1], "indices": b"\1\0\0\0\2\0\0\0\1\0\0\0", "values": b"\0\0\0?" * 3},
    "multivectors": {"lengths": [1, 1], "dtype": "float32", "shape": [2, 2], "data": b"\0" * 16},
}
ODD_ARRAYS = st.sampled_from(sorted(ARRAYS)).flatmap(
    lambda name: changed(ARRAYS[name], ODD | SHAPES | st.binary(max_size=40)).map(lambda odd: USUAL | {name: odd})
)
ODD_REPLIES = (
    changed(USUAL | {"cached": 0})
    | changed({"id": "a", "status": "done", "hits": [[{"id": "1"}]], "model": "m"})
    | changed({"code": "overloaded", "message": "m"}).map(lambda error: {"id": "a", "error": error})
)


@fuzz(240, data=st.binary() | mutated(REPLIES) | (ODD_REPLIES | ODD_ARRAYS).map(packed))
def test_the_bytes_of_a_reply_have_the_right_types_or_are_malformed(data: bytes) -> None:
    reply = outcome(Reply.unpack, data)
    if isinstance(reply, MalformedJob):
        return
    assert isinstance(reply, Reply)
    assert isinstance(reply.id, str)
    with suppress(ShoalError):  # the reply's own error
        assert Reply.join([reply]) is reply
    for vector in reply.sparse or ():
        assert len(vector.indices) == len(vector.values)
        assert (vector.values > 0).all()
    assert reply.num_bytes <= len(data)
    if reply.vectors is not None:
        assert reply.vectors.ndim == 2
        assert reply.vectors.nbytes <= len(data)
        assert len(reply.rows_by_text()) == max(1, len(reply.tokens))


# Jobs and the cache

JOB: dict[str, Any] = {"v": 1, "id": "a", "op": "search", "texts": ["storm"], "deadline": 4e9, "reply_to": "b"}
RERANK = JOB | {"op": "rerank", "query": "rain", "raw_scores": True}
JOBS = st.sampled_from(
    [
        Embed(["storm", "", "rain é"], Options(pooling="cls", dimensions=3, prompt_name="query")).pack(),
        Search(["storm"] * 20, k=9, index="news", deadline=4e9).pack("address"),
        Embed(["x" * 300], Options(output="tokens", truncate=False)).pack(),
    ]
)
ODD_JOBS = (changed(JOB) | changed(RERANK) | changed(JOB | {"op": "embed", "texts": ["rain"], "k": 3})).map(packed)
#: Good jobs, damaged jobs, jobs with odd fields, and other bytes.
DATA = JOBS | mutated(JOBS) | st.binary(max_size=50) | ODD_JOBS | ODD.map(packed)


@fuzz(150, data=DATA)
def test_job(data: bytes) -> None:
    job, outline = outcome(operations.unpack, data), Outline.read(data)
    if isinstance(job, Job):
        assert operations.unpack(job.pack()) == job
        assert (outline.id, outline.reply_to) == (job.id, job.reply_to)
    assert outline.id is None or check_name("id", outline.id)
    assert outline.reply_to is None or check_name("reply_to", outline.reply_to)


@pytest.fixture
def worker(queue: Queue, encoder: Encoder, index: Index, reranker: Reranker) -> Worker:
    return Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), reranker=reranker)


@fuzz(40, entries=st.lists(st.tuples(st.sampled_from(LANES), DATA), min_size=1, max_size=6), good=TEXTS)
def test_any_bytes_pushed_onto_a_lane_are_answered_or_buried(
    worker: Worker, queue: Queue, entries: list[tuple[str, bytes]], good: str
) -> None:
    redis, keys = queue.redis, queue.keys
    for lane, data in entries:
        redis.rpush(keys.lane(lane), data)
    queue.put("interactive", [Embed([good], id="good", reply_to="good")])
    num_steps = 0
    while any(queue.backlog().values()):
        worker.step(block_s=0)
        assert (num_steps := num_steps + 1) <= 20 * len(entries)
    outlines = [Outline.read(data) for _, data in entries]
    assert redis.xlen(keys.dead) >= sum(job.id is None for job in outlines)
    assert redis.xlen(keys.replies("good")) == 1
    for job in outlines:
        if job.id is not None:
            assert redis.exists(keys.replies(job.reply_to) if job.reply_to else keys.result(job.id))
    assert not redis.exists(*(keys.of_lane(lane, "load") for lane in LANES), keys.held(worker.id))
    redis.delete(*redis.scan_iter(f"{keys.root}:*"))


@fuzz(60, cache=changed(TABLE.to_heartbeat()) | ODD)
def test_announced_table(cache: Any) -> None:
    table = Table.from_heartbeats([ABOUT | {"cache": cache}])
    if table is not None:
        assert all(len(digest) == 16 for digest in table.digests(["storm"], table.default_prompt, Options()))


# Heartbeats

#: A time in Unix milliseconds until which workers count as alive.
FAR_MS = 10**13


@fuzz(25, values=changed(ABOUT) | ODD, raw=st.binary() | mutated(st.just(wire.pack(ABOUT))), name=TEXTS | st.binary())
def test_heartbeat(queue: Queue, values: Any, raw: bytes, name: str | bytes) -> None:
    pool, redis, keys = Pool(queue.broker, queue.keys), queue.redis, queue.keys
    for worker_id, beat in (("a", packed(values)), ("b", raw)):
        redis.zadd(keys.alive, {worker_id: FAR_MS, name: FAR_MS})
        redis.set(keys.worker(worker_id), beat, ex=3_600)
    workers = pool.workers()
    assert set(workers) >= {"a", "b"}
    assert all(wire.is_json(about) for about in workers.values())
    assert pool.texts_per_s() is not None
    Table.from_heartbeats(pool.ready().values())
    redis.delete(keys.alive)


# Msgpack


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the 0 bytes are not one msgpack map: they end within a value"),
        (b"\xc1", "not one msgpack map: one of them cannot begin a value"),
        (b"\x91" * 5_000, "not one msgpack map: arrays and maps are nested too deeply"),
        (msgpack.packb({"a": 1})[:-1], "not one msgpack map: they end within a value"),
        (msgpack.packb({"a": 1}) + b"\0", "not one msgpack map: more bytes follow the first value"),
        (msgpack.packb({1: 2}), "not one msgpack map: a key of a map is not a string"),
        (msgpack.packb([1, 2]), "the msgpack value is an array: send a map"),
        (msgpack.packb({"a": msgpack.ExtType(5, b"")}), "extension type 5"),
        (pickle.dumps({"a": 1}), "more bytes follow"),
    ],
)
def test_other_bytes_are_malformed(data: bytes, words: str) -> None:
    with pytest.raises(MalformedJob, match=words):
        wire.unpack(data)


def test_a_string_that_utf8_cannot_encode_is_refused() -> None:
    with pytest.raises(InvalidText, match=r"lone surrogate '\\ud83d' at character 1, .* remove or replace it"):
        wire.pack({"texts": ["a\ud83d"]})
    with pytest.raises(InvalidText, match="not UTF-8"):
        wire.unpack(b"\x81\xa1a\xa1\xff")


def test_the_values_of_all_arrays_and_maps_are_counted() -> None:
    value = {"a": [[[1] * 10] * 5]}
    data = msgpack.packb(value)
    num_values = wire.num_values(value)
    assert num_values == (1 + 1 + 5 + 50) + 8 * wire.VALUES_OF_A_CONTAINER
    assert wire.unpack(data, num_values) == value
    with pytest.raises(TooLarge, match=f"over {num_values - 1} values: split it"):
        wire.unpack(data, num_values - 1)
