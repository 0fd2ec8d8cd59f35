"""The pipeline: the way of jobs' texts to one model, tokenized a few passes ahead. Knows no tensors."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import ShoalError
from shoal_workers.chunked_texts import ChunkedTexts
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import TokenizedText
from shoal_workers.encoding.pass_speed import PassSpeed
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.work import Work

#: Passes for which texts are tokenized ahead, so that texts of like length can be batched.
WINDOW_PASSES = 2

#: Most characters that are tokenized at a time: with the longest texts and the slowest scripts, that takes 50 ms.
MAX_TOKENIZED_CHARS = 16_384

#: Most portions of `MAX_TOKENIZED_CHARS` before a pass. The rest is tokenized after it.
MAX_PORTIONS = 8

#: Characters of chunks after which no more chunks are cut before a pass. The tokens of the pass are no such limit:
#: equal chunks are computed once, so a text that repeats itself would be cut for seconds, while other jobs wait.
ENOUGH_CHUNK_CHARS = 8_192

#: Tokenizes texts or pairs, cut on the named side: `Encoder.tokenize`, `Reranker.tokenize_pairs`.
Tokenize = Callable[[Sequence[Any], str], list[Tokens]]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The way of texts to a model that takes `max_tokens` of each: `tokenize`, then the passes of `bucketing`.

    `speed` is that of its passes, as measured. While `runs_aside` returns True, texts of interactive jobs can be
    encoded in between.
    """

    tokenize: Tokenize
    max_tokens: int
    bucketing: Bucketing[TokenizedText]
    speed: PassSpeed = field(default_factory=PassSpeed)
    runs_aside: Callable[[], bool] = lambda: False

    def fill(
        self,
        works: Sequence[Work],
        max_reply_vectors: int,
        pass_tokens: float | None = None,
        max_chars: int = MAX_TOKENIZED_CHARS,
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        """Tokenize texts of the jobs, in order, until a few passes are full. Texts that are the same become one.

        A pass has `pass_tokens`, by default as many as it may have, and `max_chars` are tokenized at a time. Once
        `is_urgent` returns True, no more are.
        A job for vectors of tokens or chunks fails as soon as its texts have more than `max_reply_vectors` of them.
        """
        known = {
            _key(work, text.tokens): text for work in works for text in work.tokenized.values() if not text.is_done
        }
        num_tokens = sum(text.num_tokens for text in known.values())
        enough_tokens = WINDOW_PASSES * (pass_tokens or self.bucketing.max_batch_tokens)
        enough_cut_chars = _num_cut_chars(works) + ENOUGH_CHUNK_CHARS
        for _ in range(MAX_PORTIONS):
            if num_tokens >= enough_tokens or _num_cut_chars(works) >= enough_cut_chars:
                return
            if not (found := self._tokenize_next(works, max_chars)):
                return
            for work, number, tokens in found:
                new = TokenizedText(tokens, work.options.pooling, work.options.output)
                work.tokenized[number] = known.setdefault(_key(work, tokens), new)
                num_tokens += new.num_tokens if work.tokenized[number] is new else 0
            for work in dict.fromkeys(work for work, _, _ in found):
                work.check_num_vectors(max_reply_vectors)
            if is_urgent():
                return

    def _tokenize_next(self, works: Iterable[Work], max_chars: int) -> list[tuple[Work, int, Tokens]]:
        """Return the tokens of the next texts of the jobs, or of the next chunks of one, by job and number."""
        portion = _next_portion(works, max_chars)
        if portion and (chunked := portion[0][0].chunked):
            return _cut(portion[0][0], chunked)
        found = []
        for (work, number), tokens in zip(portion, self._tokenize(portion), strict=True):
            work.check_length(number, tokens, self.max_tokens)
            found.append((work, number, tokens))
        return found

    def _tokenize(self, portion: list[tuple[Work, int]]) -> list[Tokens]:
        """Return the tokens of the texts, tokenized together; a job on which the tokenizer fails gets an error."""
        started = time.perf_counter()
        for work, _ in portion:
            work.begin()
        sides = {work.options.truncation_side for work, _ in portion}
        works = dict.fromkeys(work for work, _ in portion)
        try:
            if len(sides) == 1:
                found = self.tokenize([work.model_input(number) for work, number in portion], sides.pop())
            else:
                found = [self._tokenize_one(work, number) for work, number in portion]
        except Exception:  # any that a tokenizer may raise
            found = [self._tokenize_one(work, number) for work, number in portion]
        for work in works:
            work.timings["tokenize_s"] += time.perf_counter() - started
        return found

    def _tokenize_one(self, work: Work, number: int) -> Tokens:
        try:
            return self.tokenize([work.model_input(number)], work.options.truncation_side)[0]
        except ShoalError as error:
            work.error = error
        except Exception as error:  # any that a tokenizer may raise
            work.fail("the tokenizer failed", error)
        return Tokens(())


def _num_cut_chars(works: Iterable[Work]) -> int:
    """Return the number of characters of all chunks that were cut for the jobs."""
    return sum(work.chunked.num_cut_chars for work in works if work.chunked)


def _next_portion(works: Iterable[Work], max_chars: int) -> list[tuple[Work, int]]:
    """Take the next texts that are not tokenized, up to `max_chars` characters, but at least one: (job, number).

    A job whose texts are cut into chunks is a portion of its own, when the jobs before it have no text left.
    """
    portion: list[tuple[Work, int]] = []
    num_chars = 0
    for work in works:
        if work.chunked and work.has_untokenized and work.error is None:
            return portion or [(work, 0)]
        while work.untokenized and work.error is None:
            num_chars += work.num_chars(work.untokenized[0])
            if portion and num_chars > max_chars:
                return portion
            portion.append((work, work.untokenized.popleft()))
    return portion


def _cut(work: Work, chunked: ChunkedTexts) -> list[tuple[Work, int, Tokens]]:
    """Return the next chunks of the job, which gets an error if the tokenizer fails."""
    started = time.perf_counter()
    work.begin()
    found: list[tuple[int, Tokens]] = []
    try:
        found = chunked.cut()
    except Exception as error:  # any that a tokenizer may raise
        work.fail("the tokenizer failed", error)
    work.timings["tokenize_s"] += time.perf_counter() - started
    return [(work, number, tokens) for number, tokens in found]


def _key(work: Work, tokens: Tokens) -> Any:
    """Return a key that is equal for texts that can share their computation, and of which as much was read."""
    return (tokens, work.options.pooling, work.options.output)
