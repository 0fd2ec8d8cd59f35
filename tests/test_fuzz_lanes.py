"""A real worker answers any entry of a lane or keeps it as a dead letter, and goes on."""

from typing import Any

import pytest
from fuzzing import ODD, TEXTS, changed, fuzz, mutated, packed
from hypothesis import strategies as st
from queues import Queue
from test_fuzz_wire import JOB, JOBS, RERANK

from shoal.jobs import LANES
from shoal.operations import Embed
from shoal.outline import Outline
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.reranker import Reranker
from shoal_workers.index.index import Index
from shoal_workers.worker import Worker

#: Bytes that may be a job: good ones, damaged ones, ones of odd fields, and anything.
DATA = JOBS | mutated(JOBS) | st.binary(max_size=50)
DATA |= (changed(JOB) | changed(RERANK) | changed(JOB | {"op": "embed", "texts": ["rain"], "k": 3})).map(packed)
DATA |= ODD.map(packed)
WORDS = st.sampled_from([b"1", b"64", b"-1", b"", b"nan", b"9" * 30, b"\xff", b"x"]) | st.binary(max_size=9)
NAMES = st.sampled_from([b"texts", b"client", b"reply", b"Job", b"\xff"])
#: A lane, which half of it, and the fields of an entry.
ENTRY = st.tuples(
    st.sampled_from(LANES),
    st.booleans(),
    st.one_of(
        st.dictionaries(NAMES, WORDS, min_size=1, max_size=3),
        st.builds(lambda data, more: {b"job": data, **more}, DATA, st.dictionaries(NAMES, WORDS, max_size=3)),
    ),
)


@pytest.fixture
def worker(queue: Queue, encoder: Encoder, index: Index, reranker: Reranker) -> Worker:
    """A worker that serves every operation."""
    return Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096), reranker=reranker)


@fuzz(40, entries=st.lists(ENTRY, min_size=1, max_size=6), good=TEXTS)
def test_entry_of_a_lane(worker: Worker, queue: Queue, entries: list[Any], good: str) -> None:
    redis, keys = queue.redis, queue.keys
    streams = [stream for lane in LANES for stream in (keys.lane(lane), keys.overflow(lane))]
    for lane, is_back, fields in entries:
        redis.xadd(keys.overflow(lane) if is_back else keys.lane(lane), fields)
    queue.put("interactive", [Embed([good], id="good", reply_to="good")])
    num_steps = 0
    while any(redis.xlen(stream) for stream in streams):
        worker.step(block_s=0)
        assert (num_steps := num_steps + 1) <= 20 * len(entries)
    unanswerable = [fields for _, _, fields in entries if Outline.read(fields.get(b"job", b"")).id is None]
    assert redis.xlen(keys.dead) >= len(unanswerable)
    assert redis.xlen(keys.replies("good")) == 1
    for lane, _, fields in entries:
        job = Outline.read(fields.get(b"job", b""))
        if job.id is not None:
            assert redis.exists(keys.replies(job.reply_to) if job.reply_to else keys.result(job.id)), lane
    loads = [int(held) for lane in LANES for held in redis.hvals(keys.load(lane))]
    assert all(held >= 0 for held in loads)
    assert not any(redis.xpending(stream, "workers")["pending"] for stream in streams)
    redis.delete(*(name for name in redis.scan_iter(f"{keys.root}:*") if name.decode() not in streams))
