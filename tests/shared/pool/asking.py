"""Jobs for a worker that a test steps, and the parts of their replies."""

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray
from queues import queue_of, work_off

from shoal.contract.jobs import Job
from shoal.contract.replies import Reply
from shoal.errors import ShoalError
from shoal_workers.loop.worker import Worker


def ask(worker: Worker, *jobs: Job) -> list[Reply]:
    """Put the jobs, let the worker answer all jobs of its queue, and return the jobs' replies in order."""
    queue = queue_of(worker)
    queue.put("interactive", [replace(job, reply_to="me") for job in jobs])
    work_off(worker, queue)
    return replies(worker, *jobs)


def replies(worker: Worker, *jobs: Job) -> list[Reply]:
    """Return the replies to the jobs, all of which must have come to the address `me`."""
    found = {reply.id: reply for reply in queue_of(worker).inbox("me").wait()}
    return [found[job.id] for job in jobs]


def error(reply: Reply) -> ShoalError:
    """Return the reply's error."""
    assert reply.error is not None
    return reply.error


def hits(reply: Reply) -> list[list[dict[str, Any]]]:
    """Return the hits of a search."""
    assert reply.error is None, reply.error
    assert reply.hits is not None
    return reply.hits


def scores(reply: Reply) -> NDArray[Any]:
    """Return the scores of a rerank."""
    assert reply.error is None, reply.error
    assert reply.scores is not None
    return reply.scores


def vectors(reply: Reply) -> NDArray[Any]:
    """Return the vectors of an embed."""
    assert reply.error is None, reply.error
    assert reply.vectors is not None
    return reply.vectors
