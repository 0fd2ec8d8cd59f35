"""Jobs that foreign programs put into Redis: answered if they name themselves, else kept as dead letters."""

from typing import Any

import msgpack
import pytest
from queues import Queue

from shoal.contract.replies import Reply
from shoal.operations import Embed
from shoal_workers.loop.worker import Worker


def put_bytes(queue: Queue, data: bytes) -> None:
    """Puts what a foreign program might."""
    queue.redis.rpush(queue.keys.lane("interactive"), data)


def replies(queue: Queue) -> dict[str, Reply]:
    """The replies that have come, by job id."""
    return {reply.id: reply for reply in queue.inbox("me").wait()}


def dead_letters(queue: Queue) -> list[dict[bytes, bytes]]:
    """The jobs that could not be answered, with the reasons."""
    return [letter for _, letter in queue.redis.xrange(queue.keys.dead)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"v": 2}, "unsupported_version"),
        ({"v": None}, "unsupported_version"),
        ({"op": "dance"}, "invalid_request"),
        ({"texts": "storm"}, "invalid_request"),
        ({"texts": ["storm", 5]}, "invalid_request"),
        ({"pooling": ["mean"]}, "invalid_request"),
        ({"k": 0, "op": "search"}, "invalid_request"),
        ({"x": msgpack.ExtType(5, b"")}, "malformed_job"),
        ({"x": {1: 2}}, "malformed_job"),
    ],
)
def test_a_foreign_job_that_names_itself_is_answered(
    worker: Worker, queue: Queue, fields: dict[str, Any], expected: str
) -> None:
    job = {"v": 1, "id": "mine", "op": "embed", "texts": ["storm"], "reply_to": "me"} | fields
    put_bytes(queue, msgpack.packb(job))
    worker.step(block_s=0)
    error = replies(queue)["mine"].error
    assert error is not None
    assert error.code == expected
    assert dead_letters(queue) == []


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"no msgpack", msgpack.packb([1]), msgpack.packb({"v": 1}), msgpack.packb({"id": "a b"})]
)
def test_bytes_that_name_no_job_become_a_dead_letter(worker: Worker, queue: Queue, data: bytes) -> None:
    put_bytes(queue, data)
    neighbour = Embed(["storm"], reply_to="me")
    queue.put("interactive", [neighbour])
    worker.step(block_s=0)
    (letter,) = dead_letters(queue)
    assert letter[b"job"] == data
    assert replies(queue)[neighbour.id].error is None
    assert queue.backlog()["interactive"] == 0
