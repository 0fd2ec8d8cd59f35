"""Long texts through a worker: how much of each was read, whichever way it was cut."""

from typing import Any

import numpy as np
import pytest
from queues import Queue, drive

from shoal.jobs import Job, Options
from shoal.replies import Reply
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.worker import Worker

WORDS = ["storm", "europe", "climate", "change", "rain", "market", "falls", "rises"]


@pytest.fixture
def worker(queue: Queue, encoder: Encoder) -> Worker:
    """A worker with the tiny model, which takes 48 tokens."""
    return Worker(queue.consumer(), encoder, {}, Bucketing(256))


def embed(worker: Worker, queue: Queue, *texts: str, **options: Any) -> Reply:
    """The worker's reply to a job of the texts."""
    job = Job("embed", list(texts), Options(**options), reply_to="me")
    queue.put("interactive", [job])
    drive(worker)
    (reply,) = [reply for reply in queue.inbox("me").wait() if reply.id == job.id]
    return reply


def words(num_words: int) -> str:
    """A text of so many words, each of which is a token."""
    return " ".join(WORDS[n % len(WORDS)] for n in range(num_words))


class TestTruncated:
    def test_a_reply_tells_how_much_of_each_text_was_read(self, worker: Worker, queue: Queue) -> None:
        texts = [words(46), words(47), words(47) + "  ", "", "z" * 3_000, words(3) + "\r\n"]
        reply = embed(worker, queue, *texts)
        assert reply.truncated == [False, True, True, False, False, False]
        assert reply.characters == [len(words(46)), len(words(46)), len(words(46)), 0, 3_000, len(words(3)) + 2]

    def test_of_a_text_cut_on_the_left_the_last_characters_were_read(self, worker: Worker, queue: Queue) -> None:
        text = words(100)
        (characters,) = embed(worker, queue, text, truncation_side="left").characters
        assert text[-characters:].split() == text.split()[-46:]
        assert text[-characters] != " "

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_the_prompt_does_not_count(self, worker: Worker, queue: Queue, side: str) -> None:
        texts = [words(100), words(45), words(46)]
        reply = embed(worker, queue, *texts, prompt_name="query", truncation_side=side)
        kept = [45, 45, 45] if side == "right" else [46, 45, 46]
        expected = [
            text.split()[:n] if side == "right" else text.split()[-n:] for text, n in zip(texts, kept, strict=True)
        ]
        assert reply.truncated == [True, False, True]
        assert reply.characters == [len(" ".join(part)) for part in expected]

    def test_texts_that_are_cut_to_the_same_tokens_each_tell_their_own(self, worker: Worker, queue: Queue) -> None:
        whole, cut, spaced = words(46), words(60), words(60).replace(" ", "  ")
        reply = embed(worker, queue, whole, cut, spaced)
        assert reply.truncated == [False, True, True]
        assert reply.characters == [len(whole), len(whole), len(whole) + 45]
        assert reply.vectors is not None
        np.testing.assert_allclose(reply.vectors[0], reply.vectors[1], atol=1e-5)
