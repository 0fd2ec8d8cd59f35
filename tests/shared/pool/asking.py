"""Jobs for a worker that a test steps, the parts of their replies, and encoders that note what they compute."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray
from queues import queue_of, work_off

from shoal.contract.jobs import Job
from shoal.contract.replies import Reply
from shoal.errors import ShoalError
from shoal_workers.encoding.encoder import Encoder, EncodingPass, TokenizedText
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


class Noting(Encoder):
    """The real encoder. It notes its passes, calls `before_pass` ahead of each, and fails on `poison`.

    `passes` has the number of texts of each pass, and `num_tokens` the number of their tokens.
    """

    def __init__(self, encoder: Encoder, poison: Any = "poison"):
        super().__init__(encoder.model, encoder.tokenizer, encoder.engine, encoder._head_graphs)
        self.passes: list[int] = []
        self.num_tokens: list[int] = []
        self.before_pass: Callable[[Sequence[TokenizedText]], object] = lambda _: None
        (self.poison,) = encoder.tokenize([poison])

    def start(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        """Note the pass, and start it unless it has a text to fail on."""
        self.before_pass(texts)
        self.passes.append(len(texts))
        self.num_tokens.append(sum(text.num_tokens for text in texts))
        if any(text.tokens.ids == self.poison.ids for text in texts):
            raise RuntimeError("the engine chokes")
        return super().start(texts)
