"""Any bytes from Redis are read correctly or refused with an error of Shoal, without another error or much memory."""

import resource
import subprocess
import sys
from contextlib import suppress
from typing import Any

import numpy as np
from blocking import Pool
from fuzzing import ODD, TEXTS, changed, fuzz, mutated, outcome, packed
from hypothesis import strategies as st
from job_names import JOB_NAMES
from queues import Queue

from shoal import operations
from shoal.cache.table import Table
from shoal.contract import wire
from shoal.contract.jobs import Job, check_name
from shoal.contract.options import OPTION_NAMES, Options
from shoal.contract.outline import Outline
from shoal.contract.replies import TIMINGS, Reply
from shoal.errors import MalformedJob, ShoalError
from shoal.operations import Embed, Search

JOB: dict[str, Any] = {"v": 1, "id": "a", "op": "search", "texts": ["storm"], "deadline": 4e9, "reply_to": "b"}
RERANK = JOB | {"op": "rerank", "query": "rain", "raw_scores": True}
JOBS = st.sampled_from(
    [
        Embed(["storm", "", "rain é"], Options(pooling="cls", dimensions=3, prompt_name="query")).pack(),
        Search(["storm"] * 20, k=9, index="news", deadline=4e9).pack("address"),
        Embed(["x" * 300], Options(output="tokens", truncate=False)).pack(),
    ]
)
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
ABOUT |= {"written_at": 5.0, "longest_waits": {"bulk": 1.5}, "recent": [{"id": "a", "timings": {"queue_s": 0.5}}]}


def test_a_claim_of_more_than_there_is_takes_no_memory() -> None:
    claims = [b"\x81\xa1a" + marker + b"\xff" * 4 for marker in (b"\xc6", b"\xdb", b"\xdd", b"\xdf", b"\xc9")]
    claims += [b"\x81\xa1a" + b"\xdd\x00\x0f\x00\x00" * 1_000 + b"\xc0" * 2**20]  # a thousand lists of a million each
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in claims:
        assert isinstance(outcome(wire.unpack, data), MalformedJob)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


def test_where_memory_is_bounded_a_claim_is_an_error_like_any_other() -> None:
    script = """
import resource
from pathlib import Path
from shoal.contract import wire
from shoal.errors import MalformedJob
now_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now_bytes + 2**28, resource.RLIM_INFINITY))  # more processors, more stacks
try:
    wire.unpack(b"\\x81\\xa1a" + b"\\xdd\\x00\\xf0\\x00\\x00" * 1_000 + b"\\xc0" * 2**24)
except MalformedJob as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "not one msgpack map" in done.stdout


# Jobs


@fuzz(
    100,
    data=st.binary()
    | mutated(JOBS)
    | (
        changed(JOB)
        | changed(JOB | {"op": "embed"})
        | changed(RERANK)
        | changed(dict.fromkeys((*JOB_NAMES, *OPTION_NAMES)) | JOB)
    ).map(packed),
)
def test_job(data: bytes) -> None:
    check_job(data)


def check_job(data: bytes) -> None:
    """Check that the bytes are a job that survives the wire, or are refused; and what can be read of their address."""
    job = outcome(operations.unpack, data)
    outline = Outline.read(data)
    if isinstance(job, Job):
        assert operations.unpack(job.pack()) == job
        assert (outline.id, outline.reply_to) == (job.id, job.reply_to)
    assert outline.id is None or check_name("id", outline.id)
    assert outline.reply_to is None or check_name("reply_to", outline.reply_to)


def test_a_huge_value_makes_no_huge_message() -> None:
    for name in {*JOB, *OPTION_NAMES, "index", "k"} - {"texts"}:
        for value in ("x" * 10_000_000, b"x" * 10_000_000):
            outcome(operations.unpack, packed(JOB | {name: value}))


# Replies

USUAL = {"v": 1, "id": "a", "status": "done", "tokens": [1], "truncated": [True], "characters": [1], "timings": {}}


@fuzz(
    100,
    data=st.binary()
    | mutated(REPLIES)
    | (
        changed(USUAL | {"cached": 0})
        | changed({"id": "a", "status": "done", "hits": [[{"id": "1"}]], "model": "m"})
        | changed({"code": "overloaded", "message": "m"}).map(lambda error: {"id": "a", "error": error})
    ).map(packed),
)
def test_reply(data: bytes) -> None:
    check_reply(data)


SHAPES = st.lists(st.integers(-3, 9) | st.integers(-(2**63), 2**64 - 1) | st.just(True) | st.just(2.0), max_size=4)


@fuzz(
    60, values=changed({"dtype": "float32", "shape": [2, 3], "data": b"\0" * 24}, ODD | SHAPES | st.binary(max_size=40))
)
def test_reply_of_odd_vectors(values: dict[str, Any]) -> None:
    check_reply(packed({"id": "a", "status": "done", "tokens": [1, 1], "vectors": values}))


def check_reply(data: bytes) -> None:
    """Check that the bytes are a reply with fields of the right types, or are refused as malformed."""
    reply = outcome(Reply.unpack, data)
    if isinstance(reply, MalformedJob):
        return
    assert isinstance(reply, Reply)
    assert isinstance(reply.id, str)
    with suppress(ShoalError):  # which is the reply's own, in the words that came
        assert Reply.join([reply]) is reply
    if reply.vectors is not None:
        assert reply.vectors.ndim == 2
        assert reply.vectors.nbytes <= len(data)
        assert len(reply.rows_by_text()) == max(1, len(reply.tokens))


# The cache


@fuzz(
    60,
    values=changed(ABOUT),
    cache=changed(TABLE.to_heartbeat()) | ODD,
    options=st.sampled_from([Options(), Options(dimensions=2)]),
)
def test_announced_table(values: dict[str, Any], cache: Any, options: Options) -> None:
    for about in (values, ABOUT | {"cache": cache}):
        table = Table.from_heartbeats([about])
        if table is not None and table.supports(options):
            assert all(len(digest) == 16 for digest in table.digests(["storm"], table.prompt(None), options))


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
