"""The window: texts of jobs that are tokenized a few passes ahead, so that texts of similar length share a pass."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shoal.errors import ShoalError
from shoal_workers.encoding.encoder import Pipeline, TokenizedText
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.operations.work import Work

#: Number of passes for which texts are tokenized ahead.
WINDOW_PASSES = 2

#: Largest number of characters that are tokenized at a time. This takes at most 50 ms, with the longest texts and
#: slowest scripts.
MAX_TOKENIZED_CHARS = 16_384

#: Largest number of characters that are tokenized at a time while interactive jobs are expected.
MAX_PREEMPTIBLE_CHARS = 4_096

#: Largest number of portions, each of `MAX_TOKENIZED_CHARS`, that are tokenized before a pass.
MAX_PORTIONS = 8

#: Once the chunks that were cut before a pass have this number of characters, no more are cut. A limit on tokens would
#: not be enough: equal chunks count once, so a text that repeats itself would be cut for seconds while other jobs wait.
ENOUGH_CHUNK_CHARS = 8_192


def texts_of(works: Iterable[Work]) -> list[TokenizedText]:
    """Return the tokenized texts that are not encoded yet, in the order of their jobs, without duplicates."""
    texts = (text for work in works if work.error is None for text in work.tokenized.values())
    return list(dict.fromkeys(text for text in texts if not text.is_done))


def fill(works: Sequence[Work], max_reply_vectors: int, max_cost: float | None, is_urgent: Callable[[], bool]) -> None:
    """Tokenize inputs of one pipeline's jobs, in order, until `WINDOW_PASSES` passes are full. Equal inputs become one.

    `max_cost` limits a pass while interactive jobs are expected. Then only few texts are tokenized at a time, and none
    after `is_urgent` has returned True. A job for vectors of tokens or chunks fails as soon as its texts have more than
    `max_reply_vectors` vectors.
    """
    pipeline = works[0].pipeline
    known = {_key(work, text.tokens): text for work in works for text in work.tokenized.values() if not text.is_done}
    num_tokens = sum(text.num_tokens for text in known.values())
    enough_tokens = WINDOW_PASSES * (max_cost or pipeline.bucketing.max_batch_tokens)
    max_chars = MAX_PREEMPTIBLE_CHARS if max_cost else MAX_TOKENIZED_CHARS
    enough_cut_chars = sum(work.num_cut_chars for work in works) + ENOUGH_CHUNK_CHARS
    for _ in range(MAX_PORTIONS):
        if num_tokens >= enough_tokens or sum(work.num_cut_chars for work in works) >= enough_cut_chars:
            return
        if not (found := _tokenize_next(pipeline, works, max_chars)):
            return
        for work, number, tokens in found:
            new = TokenizedText(tokens, work.options.pooling, work.options.outputs)
            work.tokenized[number] = known.setdefault(_key(work, tokens), new)
            num_tokens += new.num_tokens if work.tokenized[number] is new else 0
        for work in dict.fromkeys(work for work, _, _ in found):
            work.check_num_vectors(max_reply_vectors)
        if max_cost and is_urgent():
            return


def _key(work: Work, tokens: Tokens) -> Any:
    """Return a key of an input. Inputs with equal keys can share one computation."""
    return (tokens, work.options.pooling, work.options.output)


def _tokenize_next(pipeline: Pipeline, works: Iterable[Work], max_chars: int) -> list[tuple[Work, int, Tokens]]:
    """Tokenize the next inputs, up to `max_chars` characters. Inputs of a job that cuts them are tokenized alone."""
    portion: list[tuple[Work, int]] = []
    num_chars = 0
    for work in works:
        if (portion and portion[0][0].reading != work.reading) or work.error is not None or not work.has_untokenized:
            continue
        if work.is_cut:
            if not portion:
                return [(work, number, tokens) for number, tokens in work.cut()]
            break
        while work.untokenized:
            given = work.inputs[work.untokenized[0]]
            num_chars += len(given) if isinstance(given, str) else sum(map(len, given))
            if portion and num_chars > max_chars:
                return _tokenize(pipeline, portion)
            portion.append((work, work.untokenized.popleft()))
    return _tokenize(pipeline, portion)


def _tokenize(pipeline: Pipeline, portion: Sequence[tuple[Work, int]]) -> list[tuple[Work, int, Tokens]]:
    """Tokenize the inputs together and return them with their tokens. If the tokenizer fails on one, its job fails."""
    started, works = time.perf_counter(), dict.fromkeys(work for work, _ in portion)
    for work in works:
        work.begin()
    try:
        inputs = [work.inputs[number] for work, number in portion]
        found = pipeline.encoder.tokenize(inputs, *portion[0][0].reading) if portion else []
    except Exception:  # a tokenizer may raise any exception
        found = [_tokenize_one(pipeline, work, number) for work, number in portion]
    for work in works:
        work.timings["tokenize_s"] += time.perf_counter() - started
    for (work, number), tokens in zip(portion, found, strict=True):
        work.check_tokens(number, tokens)
    return [(work, number, tokens) for (work, number), tokens in zip(portion, found, strict=True)]


def _tokenize_one(pipeline: Pipeline, work: Work, number: int) -> Tokens:
    try:
        return pipeline.encoder.tokenize([work.inputs[number]], *work.reading)[0]
    except ShoalError as error:
        work.error = error
    except Exception as error:  # a tokenizer may raise any exception
        work.fail("the tokenizer failed", error)
    return Tokens(())
