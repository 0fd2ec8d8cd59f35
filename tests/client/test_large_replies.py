"""Large jobs and replies: jobs that are refused, slow connections, replies that cannot be sent, and limits of size."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from typing import Any

import msgpack
import numpy as np
import pytest
from api_stub import MakeApp
from conftest import WORDS, RedisServer
from queues import Queue, drive, work_off
from tcp_proxy import Proxy

from shoal import Client, operations
from shoal.broker.broker import Broker
from shoal.contract import wire
from shoal.contract.jobs import LANES, TEXTS_PER_JOB
from shoal.contract.keys import Keys
from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.errors import ShoalError, TooLarge, Unavailable, UnknownJob
from shoal.operations import MAX_VALUES, Embed
from shoal.queue.consumer import HEAD_BYTES, MAX_SENDS, MAX_WRITE_BYTES, Answer, Consumer
from shoal.queue.lane import MAX_PUT_BYTES
from shoal.settings import DEFAULTS
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.loop.worker import Worker

pytest_plugins = ["api_fixtures"]

#: Seconds for which a result is kept after it was read, as docs/architecture.md says.
READ_TTL_S = 60


def code(reply: Reply | None) -> str:
    """Return the error code of a reply, or its status."""
    assert reply is not None
    return reply.error.code if reply.error else reply.status


class TestSending:
    def test_a_large_reply_has_more_time_than_other_commands(self, queue: Queue, redis_server: RedisServer) -> None:
        job = Embed(["storm"])
        queue.put("interactive", [job])
        (delivery,) = queue.take("w", LANES, 1)
        vectors = np.zeros((8_000, 1_000), np.float32)  # 3.2 s on this connection; sockets buffer less than 1 s
        link = Proxy(redis_server.port, bytes_per_s=10_000_000)
        with link, closing(Broker.connect(f"redis://127.0.0.1:{link.port}/0", answer_s=2)) as slow:
            consumer = Consumer(slow, queue.keys, "w", max_reply_bytes=2 * vectors.nbytes)
            assert consumer.reply([Answer(delivery, Reply(job.id, vectors=vectors))]) == 1
        assert code(queue.wait_result(job.id, 0)) == "done"

    def test_a_reply_that_cannot_be_sent_is_given_up(
        self, queue: Queue, redis_server: RedisServer, encoder: Encoder
    ) -> None:
        texts = [f"{'storm ' * 30}{n}" for n in range(2 * MAX_WRITE_BYTES // (4 * encoder.model.dimension * 34))]
        job, num_failures = Embed(texts, Options(output="tokens")), 0
        queue.put("interactive", [job])
        link = Proxy(redis_server.port, max_bytes=MAX_WRITE_BYTES)
        with link, closing(Broker.connect(f"redis://127.0.0.1:{link.port}/0", answer_s=5)) as broken:
            worker = Worker(Consumer(broken, queue.keys, "w"), encoder, {}, Bucketing(4_096))
            for _ in range(1_000):
                if not queue.backlog()["interactive"] or num_failures == 5:
                    break
                worker.admission._next_reclaim = 0.0  # reclaim at once instead of after a second
                try:
                    worker.step(block_s=0)
                except Unavailable:
                    num_failures += 1
        assert num_failures == MAX_SENDS
        assert not worker.consumer._failed_sends
        assert code(queue.wait_result(job.id, 0)) == "too_large"

    def test_while_redis_is_away_a_large_reply_is_not_given_up(self, own_redis: RedisServer, keys: Keys) -> None:
        queue = Queue.connect(own_redis.url, keys)
        queue.put("interactive", [Embed(["storm"], reply_to="me")])
        (delivery,) = queue.take("w", LANES, 1)
        consumer = queue.consumer("w")
        vectors = np.zeros((MAX_WRITE_BYTES // 4_000 + 1, 1_000), np.float32)
        answer = Answer(delivery, Reply(delivery.job().id, vectors=vectors), "me")
        own_redis.stop()
        for _ in range(2 * MAX_SENDS):
            with pytest.raises(Unavailable):
                consumer.reply([answer])
        own_redis.start()
        consumer.check_sends(delivery)
        assert consumer.reply([answer]) == 1
        queue.close()


def test_a_job_is_refused_as_soon_as_its_tokens_are_over_the_limit(queue: Queue, encoder: Encoder) -> None:
    job = Embed([f"{first} {second}" for first in WORDS for second in WORDS] * 16, Options(output="tokens"))
    queue.put("interactive", [job])
    consumer = Consumer(queue.broker, queue.keys, "w", max_reply_bytes=500 * 4 * encoder.model.dimension)
    worker = Worker(consumer, encoder, {}, Bucketing(100))
    drive(worker)
    assert code(queue.wait_result(job.id, 0)) == "too_large"
    assert worker.counters["batches"] == 0


def test_a_long_list_is_sent_a_few_parts_at_a_time(redis_url: str, keys: Keys, serving: Worker) -> None:
    texts = [f"{'storm' * 20}{n}" for n in range(1_000)]
    client = Client(redis_url, key_prefix=keys.prefix, pool=keys.pool, max_reply_mb=0)
    with client, pytest.raises(TooLarge, match="of 250 parts"):
        client.embed(texts, output="tokens")
    assert serving.counters["texts"] < 100


def test_many_clients_can_read_a_large_result_at_the_same_time(queue: Queue, make_app: MakeApp) -> None:
    job = Embed(["storm"])
    queue.put("interactive", [job])
    vectors = np.full((DEFAULTS.max_reply_mb * 2**8 - 1, 1_000), 0.1, np.float32)
    for delivery in queue.take("w", LANES, 1):
        queue.reply([Answer(delivery, Reply(job.id, vectors=vectors, tokens=[len(vectors)]))])
    app = make_app()

    def read(_: int) -> int:
        with app.test_client() as client:
            return client.get(f"/v1/jobs/{job.id}/result?wait=20").status_code

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(read, range(8))) == [200] * 8


def test_a_second_reading_of_a_result_does_not_prolong_its_life(queue: Queue) -> None:
    job = Embed(["storm"])
    queue.put("interactive", [job])
    queue.reply([Answer(delivery, Reply(job.id)) for delivery in queue.take("w", LANES, 1)])
    queue.wait_result(job.id, 0)
    assert queue.redis.hget(queue.keys.record(job.id), "is_read") == b"1"
    queue.redis.expire(queue.keys.result(job.id), READ_TTL_S // 2)
    assert queue.wait_result(job.id, 0) is not None
    assert queue.redis.ttl(queue.keys.result(job.id)) <= READ_TTL_S // 2
    queue.redis.delete(queue.keys.result(job.id))
    with pytest.raises(UnknownJob, match="60 s once it was read"):
        queue.wait_result(job.id, 0)
    assert queue.status(job.id)[0] == "done"


def map_of_texts(texts: bytes) -> bytes:
    """Return the bytes of a job whose `texts` are these msgpack bytes."""
    return b"\x84" + bytes(msgpack.packb({"v": 1, "id": "x", "op": "embed"}))[1:] + b"\xa5texts" + texts


def test_jobs_with_too_many_bytes_are_not_put(queue: Queue) -> None:
    large = Embed(["x" * (MAX_PUT_BYTES // 2)] * 2)
    with pytest.raises(TooLarge, match="exceed the limit of a lane, 33,554,432: split the list"):
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
    large, other = Embed(["x" * MAX_PUT_BYTES], reply_to="me"), Embed(["storm"], reply_to="me")
    lane = queue.keys.lane("interactive")
    queue.redis.rpush(lane, large.pack())
    (taken,) = worker.consumer.take({"interactive": 1}, block_s)
    assert (len(taken.data), taken.size_bytes) == (HEAD_BYTES, len(large.pack()))
    queue.redis.rpush(lane, other.pack())
    work_off(worker, queue)
    assert code(queue.wait_result(large.id, 0)) == "too_large"
    assert code(*queue.inbox("me").wait()) == "done"


def test_a_job_with_many_texts_is_read_and_one_with_many_empty_maps_uses_little_memory() -> None:
    data = map_of_texts(b"\xdd" + (999_999).to_bytes(4, "big") + b"\xa0" * 999_999)
    assert len(operations.unpack(data).texts) == 999_999
    with pytest.raises(ShoalError, match="text 0 is a map"):
        operations.unpack(map_of_texts(b"\x91\x80"))
    data = map_of_texts(b"\xdd" + MAX_VALUES.to_bytes(4, "big") + b"\x80" * MAX_VALUES)
    tracemalloc.start()
    with pytest.raises(TooLarge, match="over 1,048,576 values: split it"):
        operations.unpack(data)
    assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    tracemalloc.stop()


def test_small_bytes_with_too_many_values_are_refused_too() -> None:
    for number in range(30):
        value: dict[str, Any] = {"a": [[]] * number}
        with pytest.raises(TooLarge) if wire.num_values(value) > 100 else nullcontext():
            assert wire.unpack(wire.pack(value), 100) == value
