"""A worker answers any bytes that are pushed onto a lane, or keeps them as a dead letter, and goes on."""

from typing import Any

import pytest
from fuzzing import ODD, TEXTS, changed, fuzz, mutated, packed
from hypothesis import strategies as st
from queues import Queue

from shoal.contract.jobs import LANES
from shoal.contract.options import Options
from shoal.contract.outline import Outline
from shoal.operations import Embed, Search
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.reranker import Reranker
from shoal_workers.index.index import Index
from shoal_workers.loop.worker import Worker

JOB: dict[str, Any] = {"v": 1, "id": "a", "op": "search", "texts": ["storm"], "deadline": 4e9, "reply_to": "b"}
RERANK = JOB | {"op": "rerank", "query": "rain", "raw_scores": True}
JOBS = st.sampled_from(
    [
        Embed(["storm", "", "rain é"], Options(pooling="cls", dimensions=3, prompt_name="query")).pack(),
        Search(["storm"] * 20, k=9, index="news", deadline=4e9).pack("address"),
        Embed(["x" * 300], Options(output="tokens", truncate=False)).pack(),
    ]
)

#: Good jobs, damaged jobs, jobs with odd fields, and other bytes.
DATA = JOBS | mutated(JOBS) | st.binary(max_size=50)
DATA |= (changed(JOB) | changed(RERANK) | changed(JOB | {"op": "embed", "texts": ["rain"], "k": 3})).map(packed)
DATA |= ODD.map(packed)
#: A lane, and the bytes that are pushed onto it.
ENTRY = st.tuples(st.sampled_from(LANES), DATA)


@pytest.fixture
def worker(queue: Queue, encoder: Encoder, index: Index, reranker: Reranker) -> Worker:
    return Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), reranker=reranker)


@fuzz(40, entries=st.lists(ENTRY, min_size=1, max_size=6), good=TEXTS)
def test_any_bytes_pushed_onto_a_lane_are_answered_or_buried(
    worker: Worker, queue: Queue, entries: list[Any], good: str
) -> None:
    redis, keys = queue.redis, queue.keys
    for lane, data in entries:
        redis.rpush(keys.lane(lane), data)
    queue.put("interactive", [Embed([good], id="good", reply_to="good")])
    num_steps = 0
    while any(queue.backlog().values()):
        worker.step(block_s=0)
        assert (num_steps := num_steps + 1) <= 20 * len(entries)
    assert redis.xlen(keys.dead) >= sum(Outline.read(data).id is None for _, data in entries)
    assert redis.xlen(keys.replies("good")) == 1
    for lane, data in entries:
        job = Outline.read(data)
        if job.id is not None:
            assert redis.exists(keys.replies(job.reply_to) if job.reply_to else keys.result(job.id)), lane
    assert not redis.exists(*(keys.of_lane(lane, "load") for lane in LANES), keys.held(worker.id))
    redis.delete(*redis.scan_iter(f"{keys.root}:*"))
