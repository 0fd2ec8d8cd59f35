"""A worker whose connection breaks at any round trip of a step. No job is lost, whether it dies there or goes on."""

from contextlib import suppress
from functools import partial
from itertools import count

import pytest
from breaking import Plan, connect
from queues import Queue, step_while

from shoal.contract.jobs import Job
from shoal.errors import Unavailable
from shoal.operations import Embed, Search
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.index import Index
from shoal_workers.loop.worker import Worker

#: The status of each job: awaited, submitted, a search, expired, refused, and bulk.
STATUSES = ("done", "done", "done", "expired", "unknown_index", "done")


def put_all(queue: Queue) -> list[Job]:
    """Put and return these jobs; the last one is a bulk job."""
    jobs: list[Job] = [
        Embed(["storm"], reply_to="me"),
        Embed(["rain", "storm"]),
        Search(["market falls"], k=2, reply_to="me"),
        Embed(["europe"], reply_to="me", deadline=1.0),
        Search(["rain"], index="nowhere", reply_to="me"),
        Embed(["climate"], reply_to="me"),
    ]
    for job in jobs:
        queue.put("bulk" if job is jobs[-1] else "interactive", [job])
    return jobs


def has_jobs_to_reclaim(worker: Worker, queue: Queue) -> bool:
    """Return True if jobs are unanswered. The worker then looks for jobs of dead workers at once, not in a second."""
    queue.may_look(worker.id)
    worker.admission._next_reclaim = 0.0
    return any(queue.backlog().values())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["dies", "goes on"])
def test_every_job_is_answered_once_at_whatever_round_trip_a_step_breaks(
    queue: Queue, redis_url: str, encoder: Encoder, index: Index, when: str, goes_on: bool
) -> None:
    inbox, is_broken = queue.inbox("me"), True
    for at in count(1):
        jobs, plan = put_all(queue), Plan()
        breaking = Queue(connect(redis_url, plan), queue.keys)
        first = Worker(breaking.consumer(), encoder, {"default": index}, Bucketing(4_096))
        plan.breaks(when, at)
        with suppress(Unavailable):
            first.step(block_s=0)
        is_broken = not plan.when
        plan.clear()
        second = first if goes_on else Worker(queue.consumer(), encoder, {"default": index}, Bucketing(4_096))
        step_while(second, partial(has_jobs_to_reclaim, second, queue))
        answers = [*inbox.wait(0.01), queue.wait_result(jobs[1].id, 0)]
        found = {reply.id: reply.error.code if reply.error else reply.status for reply in answers if reply}
        assert found == dict(zip((job.id for job in jobs), STATUSES, strict=True))
        assert len(found) == len(answers)  # each job has one reply
        breaking.close()
        if not is_broken:  # the step has fewer round trips than `at`, so all of them have been tried
            break
    assert at > 5
