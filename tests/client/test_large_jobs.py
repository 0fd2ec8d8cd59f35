"""Large jobs: refused before they are put, and answered with an error if a program has put one all the same."""

import tracemalloc
from contextlib import nullcontext
from typing import Any

import msgpack
import pytest
from queues import Queue, work_off

from shoal import Client, operations
from shoal.contract import wire
from shoal.contract.jobs import TEXTS_PER_JOB, Job
from shoal.contract.keys import Keys
from shoal.contract.replies import Reply
from shoal.errors import ShoalError, TooLarge
from shoal.operations import MAX_VALUES, Embed
from shoal.queue.consumer import HEAD_BYTES
from shoal.queue.lane import MAX_PUT_BYTES
from shoal_workers.loop.worker import Worker

#: More bytes than a job may have.
TOO_MANY_BYTES = MAX_PUT_BYTES + 1


def put_plainly(queue: Queue, job: Job) -> None:
    """Put a job like a program that does not use the script."""
    queue.redis.rpush(queue.keys.lane("interactive"), job.pack())


def code(reply: Reply | None) -> str:
    """Return the error code of a reply, or its status."""
    assert reply is not None
    return reply.error.code if reply.error else reply.status


def map_of_texts(texts: bytes) -> bytes:
    """Return the bytes of a job whose `texts` are these msgpack bytes."""
    return b"\x84" + bytes(msgpack.packb({"v": 1, "id": "x", "op": "embed"}))[1:] + b"\xa5texts" + texts


def test_jobs_with_too_many_bytes_are_not_put(queue: Queue) -> None:
    large = Embed(["x" * (TOO_MANY_BYTES // 2)] * 2)
    with pytest.raises(TooLarge, match="over what a lane takes, 33,554,432: split the list"):
        queue.put("bulk", [large])
    queue.put("bulk", [Embed(["x" * (MAX_PUT_BYTES // 2 - 100)] * 2)])
    assert queue.backlog()["bulk"] == 1


def test_a_long_list_with_a_long_query_is_refused_before_it_is_packed(redis_url: str, keys: Keys) -> None:
    query, texts = "x" * 2**18, ["a"] * (128 * TEXTS_PER_JOB)
    with Client(redis_url, key_prefix=keys.prefix, pool=keys.pool) as client:
        tracemalloc.start()
        with pytest.raises(TooLarge, match=r"and the query has 262,144, in each of 128 jobs: 33,558,528 bytes"):
            client.rerank(query, texts)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
        tracemalloc.stop()


@pytest.mark.parametrize("block_s", [0.0, 0.1])
def test_a_job_with_too_many_bytes_is_answered(queue: Queue, worker: Worker, block_s: float) -> None:
    large, other = Embed(["x" * TOO_MANY_BYTES], reply_to="me"), Embed(["storm"], reply_to="me")
    put_plainly(queue, large)
    (taken,) = worker.consumer.take({"interactive": 1}, block_s)
    assert (len(taken.data), taken.size_bytes) == (HEAD_BYTES, len(large.pack()))
    put_plainly(queue, other)
    work_off(worker, queue)
    assert code(queue.wait_result(large.id, 0)) == "too_large"
    assert code(*queue.inbox("me").wait()) == "done"


def test_a_job_with_many_empty_maps_uses_little_memory() -> None:
    data = map_of_texts(b"\xdd" + MAX_VALUES.to_bytes(4, "big") + b"\x80" * MAX_VALUES)
    tracemalloc.start()
    with pytest.raises(TooLarge, match="over 1,048,576 values: split it"):
        operations.unpack(data)
    assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("number", range(30))
def test_small_bytes_with_too_many_values_are_refused_too(number: int) -> None:
    value: dict[str, Any] = {"a": [[]] * number}
    with pytest.raises(TooLarge) if wire.num_values(value) > 100 else nullcontext():
        assert wire.unpack(wire.pack(value), 100) == value


def test_a_job_with_many_texts_is_read() -> None:
    data = map_of_texts(b"\xdd" + (999_999).to_bytes(4, "big") + b"\xa0" * 999_999)
    assert len(operations.unpack(data).texts) == 999_999
    with pytest.raises(ShoalError, match="text 0 is a map"):
        operations.unpack(map_of_texts(b"\x91\x80"))
