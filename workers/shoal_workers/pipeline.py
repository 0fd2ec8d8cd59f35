"""The pipeline: the way of jobs' texts to one model, tokenized a few passes ahead. Knows no tensors."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import ShoalError
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import TokenizedText
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.work import Work

#: Passes for which texts are tokenized ahead, so that texts of like length can be batched.
WINDOW_PASSES = 2

#: Most characters that are tokenized at a time: with the longest texts and the slowest scripts, that takes 50 ms.
MAX_TOKENIZED_CHARS = 16_384

#: Most times that so many characters are tokenized before a pass: the rest follows after it.
MAX_CHUNKS = 8

#: Tokenizes texts or pairs, cut on the named side: `Encoder.tokenize`, `Reranker.tokenize_pairs`.
Tokenize = Callable[[Sequence[Any], str], list[Tokens]]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The way of texts to a model that takes `max_tokens` of each: `tokenize`, then the passes of `bucketing`."""

    tokenize: Tokenize
    max_tokens: int
    bucketing: Bucketing[TokenizedText]

    def fill(self, works: Sequence[Work], max_reply_tokens: int) -> None:
        """Tokenize texts of the jobs, in order, until a few passes are full. Texts that are the same become one.

        A job for token vectors fails as soon as its texts have more than `max_reply_tokens` tokens.
        """
        known = {
            _key(work, text.tokens): text for work in works for text in work.tokenized.values() if not text.is_done
        }
        num_tokens = sum(text.num_tokens for text in known.values())
        for _ in range(MAX_CHUNKS):
            if num_tokens >= WINDOW_PASSES * self.bucketing.max_batch_tokens or not (chunk := _next_chunk(works)):
                return
            for (work, number), tokens in zip(chunk, self._tokenize(chunk), strict=True):
                work.check_length(number, tokens, self.max_tokens)
                new = TokenizedText(tokens, work.job.options.pooling, work.job.options.output)
                work.tokenized[number] = known.setdefault(_key(work, tokens), new)
                num_tokens += new.num_tokens if work.tokenized[number] is new else 0
            for work in dict.fromkeys(work for work, _ in chunk):
                work.check_num_tokens(max_reply_tokens)

    def _tokenize(self, chunk: list[tuple[Work, int]]) -> list[Tokens]:
        """Return the tokens of the texts, tokenized together; a job on which the tokenizer fails gets an error."""
        started = time.perf_counter()
        for work, _ in chunk:
            work.begin()
        sides = {work.job.options.truncation_side for work, _ in chunk}
        works = dict.fromkeys(work for work, _ in chunk)
        try:
            if len(sides) == 1:
                found = self.tokenize([work.model_input(number) for work, number in chunk], sides.pop())
            else:
                found = [self._tokenize_one(work, number) for work, number in chunk]
        except Exception:  # any that a tokenizer may raise
            found = [self._tokenize_one(work, number) for work, number in chunk]
        for work in works:
            work.timings["tokenize_s"] += time.perf_counter() - started
        return found

    def _tokenize_one(self, work: Work, number: int) -> Tokens:
        try:
            return self.tokenize([work.model_input(number)], work.job.options.truncation_side)[0]
        except ShoalError as error:
            work.error = error
        except Exception as error:  # any that a tokenizer may raise
            work.fail("the tokenizer failed", error)
        return Tokens(())


def _next_chunk(works: Iterable[Work]) -> list[tuple[Work, int]]:
    """Take the next texts that are not tokenized, up to `MAX_TOKENIZED_CHARS`, but at least one: (job, number)."""
    chunk: list[tuple[Work, int]] = []
    num_chars = 0
    for work in works:
        while work.untokenized and work.error is None:
            num_chars += work.num_chars(work.untokenized[0])
            if chunk and num_chars > MAX_TOKENIZED_CHARS:
                return chunk
            chunk.append((work, work.untokenized.popleft()))
    return chunk


def _key(work: Work, tokens: Tokens) -> Any:
    """Return a key that is equal for texts that can share their computation, and of which as much was read."""
    return (tokens, work.job.options.pooling, work.job.options.output)
