"""Logs of workers contain no text of a job, whatever happens to the job, even at the level debug."""

import logging
from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
from queues import Queue, work_off

from shoal.contract.jobs import LANES
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, EncodingPass, TokenizedText
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.index.index import Index
from shoal_workers.loop.admission import MAX_DEATHS, Limits
from shoal_workers.loop.worker import Worker

#: A word in every text of these tests.
SECRET = "marshmallow"


class LeakyEncoder(Encoder):
    fails_on = ""

    def tokenize(self, texts: Sequence[str], truncation_side: str = "right", is_query: bool = False) -> list[Tokens]:
        if self.fails_on == "tokenize":
            raise RuntimeError(f"cannot tokenize {texts}")
        return super().tokenize(texts, truncation_side, is_query)

    def start(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        if self.fails_on == "encode":
            raise ValueError(f"cannot encode {SECRET}") from KeyError(SECRET)
        return super().start(texts)


class LeakyIndex:
    fault = group_field = ""
    default_mode = "dense"

    def search(self, *_: object) -> None:
        raise RuntimeError(f"cannot search for {SECRET}")


def job(**fields: object) -> bytes:
    return bytes(msgpack.packb({"v": 1, "id": "a", "op": "embed", "texts": [f"{SECRET} pie"]} | fields))


JOBS = {
    "not msgpack": SECRET.encode(),
    "no id": job(id=SECRET + " pie"),
    "an id that is no text": job(id=[SECRET]),
    "no text": job(texts=SECRET),
    "an operation that is a text": job(op=SECRET),
    "an option that is a text": job(pooling=SECRET),
    "a text that is not UTF-8": job().replace(b" pie", b"\xffpie"),
    "too many texts": job(texts=[SECRET] * 9),
    "too long a text": job(texts=[SECRET * 99]),
    "too long for the model": job(texts=[f"{SECRET} " * 45], truncate=False),
    "expired": job(deadline=1),
    "an unknown index": job(op="search", index=SECRET),
    "an unknown prompt": job(prompt_name=SECRET),
    "a broken index": job(op="search", index="broken"),
    "good": job(),
}


@pytest.mark.parametrize("fails_on", ["", "tokenize", "encode"])
def test_a_worker_logs_no_text(
    queue: Queue, encoder: Encoder, index: Index, caplog: pytest.LogCaptureFixture, fails_on: str
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = LeakyEncoder(encoder.model, encoder.tokenizer, encoder.engine)
    indexes: dict[str, Any] = {"default": index, "broken": LeakyIndex()}
    limits = Limits(max_job_texts=3, max_text_chars=500)
    leaky, engine.fails_on = Worker(queue.consumer(), engine, indexes, Bucketing(4_096), limits), fails_on
    queue.redis.rpush(queue.keys.lane("interactive"), job(id="poison"))
    for n in range(MAX_DEATHS):
        assert queue.take(f"dead{n}", LANES, 1)
        queue.die()
    for data in JOBS.values():
        queue.redis.rpush(queue.keys.lane("interactive"), data)
    work_off(leaky, queue)
    assert "dead letter: poisoned" in caplog.text
    assert "failed" in caplog.text or fails_on != "encode"
    assert SECRET not in caplog.text
