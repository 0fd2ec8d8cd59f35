"""Large replies: sent over slow links, given up where they cannot be sent, and limited in size."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import RedisServer
from queues import Queue
from tcp_proxy import Proxy

from shoal.broker.broker import Broker
from shoal.errors import Unavailable
from shoal.jobs import LANES, Job, Options
from shoal.keys import Keys
from shoal.queue.consumer import MAX_SENDS, MAX_WRITE_BYTES, Answer
from shoal.replies import Reply
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.worker import Worker


@contextmanager
def queue_over(proxy: Proxy, queue: Queue, answer_s: float) -> Iterator[Queue]:
    """The same queue over the proxy, of which each answer may take `answer_s`."""
    broker = Broker.connect(f"redis://127.0.0.1:{proxy.port}/0", answer_s)
    yield Queue(broker, queue.keys)
    broker.close()


def put_tokens(queue: Queue, num_bytes: int, dimension: int, **fields: object) -> Job:
    """Put a job whose token vectors have about so many bytes."""
    text = " ".join(["storm"] * 30)
    job = Job("embed", [f"{text} {n}" for n in range(num_bytes // (4 * dimension * 34))], Options(output="tokens"))
    queue.put("interactive", [job])
    return job


def code(reply: Reply | None) -> str:
    """The error code of a reply, or its status."""
    assert reply is not None
    return reply.error.code if reply.error else reply.status


class TestSending:
    def test_a_large_reply_has_the_time_that_its_bytes_take(self, queue: Queue, redis_server: RedisServer) -> None:
        job = Job("embed", ["storm"])
        queue.put("interactive", [job])
        (delivery,) = queue.take("w", LANES, 1)
        vectors = np.zeros((2_000, 1_000), np.float32)
        link = Proxy(redis_server.port, bytes_per_s=8_000_000)
        with link, queue_over(link, queue, answer_s=0.5) as slow:
            assert slow.reply([Answer(delivery, Reply(job.id, vectors=vectors))]) == 1

    def test_a_reply_that_cannot_be_sent_is_given_up(
        self, queue: Queue, redis_server: RedisServer, encoder: Encoder
    ) -> None:
        job, num_failures = put_tokens(queue, 2 * MAX_WRITE_BYTES, encoder.model.dimension), 0
        link = Proxy(redis_server.port, max_bytes=MAX_WRITE_BYTES)
        with link, queue_over(link, queue, answer_s=5) as broken:
            worker = Worker(broken.consumer(), encoder, {}, Bucketing(4_096))
            while queue.backlog()["interactive"] and num_failures < 5:
                worker.admission._next_claim = 0.0  # at once, where `run` would look a second later
                try:
                    worker.step(block_s=0)
                except Unavailable:
                    num_failures += 1
        assert num_failures == MAX_SENDS
        assert code(queue.wait_result(job.id, 0)) == "too_large"

    def test_while_redis_is_away_a_large_reply_is_not_given_up(self, own_redis: RedisServer, keys: Keys) -> None:
        queue = Queue.connect(own_redis.url, keys)
        queue.join()
        queue.put("interactive", [Job("embed", ["storm"], reply_to="me")])
        (delivery,) = queue.take("w", LANES, 1)
        consumer = queue.consumer("w")
        vectors = np.zeros((MAX_WRITE_BYTES // 4_000 + 1, 1_000), np.float32)
        answer = Answer(delivery, Reply(Job.unpack(delivery.data).id, vectors=vectors), "me")
        own_redis.stop()
        for _ in range(2 * MAX_SENDS):
            with pytest.raises(Unavailable):
                consumer.reply([answer])
        own_redis.start()
        consumer.check_sends(delivery)
        assert consumer.reply([answer]) == 1
        queue.close()
