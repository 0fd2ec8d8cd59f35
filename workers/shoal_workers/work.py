"""Work: one job on its way through a worker, from its delivery to its answer. This is that of texts to vectors."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.cache.entry import Entry
from shoal.errors import Internal, ShoalError, TextTooLong, TooLarge
from shoal.jobs import Job
from shoal.options import Options
from shoal.queue.answer import Answer
from shoal.queue.delivery import Delivery
from shoal.replies import TIMINGS, Reply, finish
from shoal_workers.chunked_texts import ChunkedTexts
from shoal_workers.encoding.encoder import TokenizedText
from shoal_workers.encoding.tokenizer import Tokenizer, Tokens

#: The kinds of jobs among which a worker chooses.
INTERACTIVE, LONG, BULK = "interactive", "long", "bulk"

#: Most texts, and most bytes, of an interactive job that is not long: others go between the passes of a long one.
MAX_SHORT_TEXTS, MAX_SHORT_BYTES = 32, 65_536


@dataclass(slots=True, eq=False)
class Work:
    """A job that a worker has admitted, the state of each of its texts, and the time that each step took.

    Texts are known by their number in the job: those found in the cache, those not tokenized yet, and the tokenized
    ones. If they are cut into chunks, `chunked` knows these, and chunks are tokenized by their number there. `digests`
    are the cache's names of all texts, or empty for a job that the cache does not serve. `opening` is the index
    that the job waits for, if it is not open yet. `error` says why the job cannot be answered as it asks. `now` returns
    Redis's time in Unix seconds.
    """

    delivery: Delivery
    job: Job
    prompt: str = ""
    chunked: ChunkedTexts | None = None
    digests: Sequence[bytes] = ()
    cached: dict[int, Entry] = field(default_factory=dict)
    untokenized: deque[int] = field(default_factory=deque)
    tokenized: dict[int, TokenizedText] = field(default_factory=dict)
    has_begun: bool = False
    opening: Future[Any] | None = None
    error: ShoalError | None = None
    now: Callable[[], float] = time.time
    timings: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIMINGS, 0.0))

    def __post_init__(self) -> None:
        if self.chunked is None:
            self.untokenized.extend(range(len(self.job.texts)))

    @property
    def kind(self) -> str:
        """The kind of job: "interactive", "long" if it is of that lane and has many texts, or "bulk"."""
        if self.delivery.lane == BULK:
            return BULK
        is_long = self.job.num_lane_texts > MAX_SHORT_TEXTS or len(self.delivery.data) > MAX_SHORT_BYTES
        return LONG if is_long else INTERACTIVE

    @property
    def uses_reranker(self) -> bool:
        """True if the reranker is the model of what is encoded next; otherwise it is the model that makes vectors."""
        return False

    @property
    def options(self) -> Options:
        """The options with which texts or pairs are read next."""
        return self.job.options

    @property
    def num_waiting(self) -> int:
        """Number of texts that are not encoded yet; a chunk counts as a text."""
        num_untokenized = self.chunked.num_uncut if self.chunked else len(self.untokenized)
        return num_untokenized + sum(not text.is_done for text in self.tokenized.values())

    @property
    def has_untokenized(self) -> bool:
        """True if there are texts or chunks that are not tokenized yet."""
        return bool(self.untokenized) or (self.chunked is not None and not self.chunked.is_cut)

    @property
    def num_computed(self) -> tuple[int, int]:
        """Number of texts or chunks that the engine has computed for the job, and of their tokens."""
        if self.chunked:
            return self.chunked.num_encoded, sum(self.chunked.tokens)
        return len(self.tokenized), sum(text.num_tokens for text in self.tokenized.values())

    @property
    def is_complete(self) -> bool:
        """True if nothing is left for the engine: every text has its vectors or an error, or the job has an error."""
        return self.error is not None or (
            not self.has_untokenized and all(text.is_done for text in self.tokenized.values())
        )

    @property
    def is_opening(self) -> bool:
        """True while the job waits for its index to be opened."""
        return self.opening is not None and not self.opening.done()

    def begin(self) -> None:
        """Note that the worker begins with the job, which has waited until now."""
        if not self.has_begun:
            self.has_begun = True
            self.timings["queue_s"] = self.delivery.queued_s(self.now())

    def use_cache(self, entries: Sequence[Entry | None]) -> None:
        """Take over the cache's entries of the texts, in order, where they suit the options."""
        suited = {n: entry for n, entry in enumerate(entries) if entry is not None and entry.answers(self.job.options)}
        self.cached = suited
        self.untokenized = deque(n for n in self.untokenized if n not in suited)

    def num_chars(self, number: int) -> int:
        """Return how many characters are tokenized for the text of that number."""
        return len(self.job.texts[number])

    def model_input(self, number: int) -> str | tuple[str, str]:
        """Return what the model takes for the text of that number: the text after the prompt, or query and text."""
        return self.prompt + self.job.texts[number]

    def use_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Do the job, if it needs no more than the tokenizer."""

    def check_length(self, number: int, tokens: Tokens, max_tokens: int) -> None:
        """Set the error if the text had to be cut and the options refuse that."""
        if tokens.truncated and not self.options.truncate and self.error is None:
            name = self.job.name_of(number)
            subject = f"{name} and the query have" if self.uses_reranker else f"{name} has"
            self.error = TextTooLong(
                f"{subject} more than the {max_tokens} tokens that the model takes: "
                "shorten it, cut it into passages, or let it be truncated (truncate: true)"
            )

    def check_num_vectors(self, max_reply_vectors: int) -> None:
        """Set the error if the texts read so far have more vectors of tokens or chunks than a reply has room for."""
        if self.error is not None or self.job.options.output == "vector":
            return
        if self.chunked:
            if self.chunked.num_cut > max_reply_vectors:
                self.error = TooLarge(
                    f"the texts have more chunks of {self.job.options.chunk_tokens:,} tokens than the "
                    f"{max_reply_vectors:,} for whose vectors a reply has room (SHOAL_MAX_REPLY_MB): raise "
                    "chunk_tokens, send fewer or shorter texts at a time, or ask for one vector a text (output: vector)"
                )
            return
        num_tokens = sum(text.num_tokens for text in self.tokenized.values())
        if num_tokens > max_reply_vectors:
            self.error = TooLarge(
                f"{len(self.tokenized)} of the {len(self.job.texts)} texts have {num_tokens:,} tokens, and a reply has "
                f"room for the vectors of {max_reply_vectors:,} (SHOAL_MAX_REPLY_MB): split the job"
            )

    def take_encoded_chunks(self) -> None:
        """Take chunks that are encoded out of the tokenized texts, in order; set the error if the engine failed."""
        while self.chunked and (text := self.tokenized.get(self.chunked.num_encoded)) and text.is_done:
            if text.error is not None:
                self.fail(f"the engine failed on a chunk of {self.job.name_of(self.chunked.next_text)}", text.error)
                self.tokenized.clear()
                return
            del self.tokenized[self.chunked.num_encoded]
            self.chunked.add(text)

    def check_encoded(self) -> None:
        """Set the error if the engine failed on a text."""
        failed = {n: text.error for n, text in self.tokenized.items() if text.error is not None}
        if failed:
            self.fail(f"the engine failed on {self._names_of(failed)}", next(iter(failed.values())))

    def _names_of(self, numbers: Iterable[int]) -> str:
        return ", ".join(map(self.job.name_of, numbers))

    def fail(self, what: str, cause: Exception) -> None:
        """Set the error to an unforeseen failure; `cause` is kept for the dead letter."""
        self.error = Internal(f"{what}; the worker's log has the details: leave the text out or report it")
        self.error.__cause__ = cause

    def entries(self) -> list[Entry]:
        """Return a cache entry for each text, once all are encoded."""
        return [self.cached.get(n) or self._entry(n) for n in range(len(self.job.texts))]

    def new_entries(self) -> dict[bytes, Entry]:
        """Return the entries that the cache did not have, by digest."""
        numbers = [n for n, text in self.tokenized.items() if n < len(self.digests) and text.vectors is not None]
        return {self.digests[n]: self._entry(n) for n in numbers}

    def _entry(self, number: int) -> Entry:
        """Return the cache entry of an encoded text; its characters are counted without the prompt."""
        text, tokens = self.tokenized[number], self.tokenized[number].tokens
        assert text.vectors is not None
        if self.job.options.truncation_side == "right":
            characters = max(0, tokens.characters - len(self.prompt))
        else:
            characters = min(tokens.characters, len(self.job.texts[number]))
        return Entry(text.vectors, text.num_tokens, tokens.truncated, characters)

    def vectors(self) -> NDArray[np.float32]:
        """Return the finished vectors, as the job's options ask for them."""
        return finish([entry.vectors for entry in self.entries()], self.job.options)

    def answer(self, model: str) -> Answer | None:
        """Return the reply of a job without error, and its address; if that fails, set the error and return None."""
        try:
            reply = self._reply(model)
            if self.job.ignored:
                reply = replace(reply, ignored=list(self.job.ignored))
            return Answer(self.delivery, reply, self.job.reply_to)
        except Exception as error:  # memory may be short
            self.fail("the reply could not be made", error)
            return None

    def _reply(self, model: str) -> Reply:
        if self.chunked:
            return self._chunked_reply(self.chunked, model)
        entries = self.entries()
        return Reply(
            id=self.job.id,
            output=self.job.options.output,
            tokens=[entry.num_tokens for entry in entries],
            truncated=[entry.truncated for entry in entries],
            characters=[entry.num_read(text) for entry, text in zip(entries, self.job.texts, strict=True)],
            timings=self.timings,
            cached=len(self.cached),
            model=model,
            **self._result(),
        )

    def _result(self) -> dict[str, Any]:
        """Return the fields of the reply that the operation is about."""
        return {"vectors": self.vectors()}

    def _chunked_reply(self, chunked: ChunkedTexts, model: str) -> Reply:
        return Reply(
            id=self.job.id,
            vectors=chunked.vectors(),
            output=self.job.options.output,
            tokens=chunked.tokens,
            truncated=chunked.truncated,
            characters=[len(text) for text in self.job.texts],
            chunks=chunked.chunks,
            timings=self.timings,
            model=model,
        )
