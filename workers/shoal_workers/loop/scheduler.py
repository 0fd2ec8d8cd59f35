"""The scheduler, which keeps the admitted jobs and chooses the texts of the next pass. It knows no tensors.

Texts are tokenized a few passes ahead, so that texts of similar length share a pass.
"""

import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from typing import Any

from shoal.errors import ShoalError
from shoal_workers.encoding.encoder import Pipeline, TokenizedText
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.loop.batch import Batch
from shoal_workers.operations.work import BULK, INTERACTIVE, LONG, Work

#: Time after an interactive job during which more interactive jobs are expected, in seconds.
EXPECTED_S = 1.0

#: Longest pass aside for long or bulk jobs while interactive jobs are expected, in seconds. Its time is estimated from
#: the speed of earlier passes.
MAX_ASIDE_S = 0.1

#: Longest such pass if it cannot run aside, in seconds. Interactive jobs wait for its end.
MAX_PREEMPTIBLE_S = 0.012

#: Number of tokens that such a pass may always have, even if passes are slow.
MIN_PREEMPTIBLE_TOKENS = 64

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

#: The kinds of jobs in the order of their priority, each with its share: the tokens that a waiting kind earns for each
#: computed token of an earlier kind.
SHARES = {INTERACTIVE: 1.0, LONG: 1 / 4, BULK: 1 / 8}


class Scheduler:
    """The admitted jobs of a worker that are not answered yet. Not thread-safe.

    `embeds` is the pipeline of the embedding model. A job for vectors of tokens or chunks fails as soon as its texts
    have more than `max_reply_vectors` vectors. `has_come` returns True if an interactive job waits in the queue.
    """

    def __init__(
        self,
        embeds: Pipeline,
        max_batch_texts: int = 64,
        max_reply_vectors: int = sys.maxsize,
        has_come: Callable[[], bool] = lambda: False,
    ):
        self._embeds = embeds
        self._max_batch_tokens = embeds.bucketing.max_batch_tokens
        self._max_batch_texts = max_batch_texts
        self._max_reply_vectors = max_reply_vectors
        self._has_come = has_come
        self._expected_until = 0.0
        self._waiting: dict[str, dict[Work, None]] = {kind: {} for kind in SHARES}  # each an ordered set
        self._credit = dict.fromkeys(SHARES, 0.0)  # the tokens that each kind has earned
        self._last: dict[str, Pipeline] = {}  # for each kind, the pipeline of its last pass
        self._completed: list[Work] = []

    def waiting(self) -> list[Work]:
        """Return the jobs that are not completed, and the searches whose index is being opened."""
        works = [work for waiting in self._waiting.values() for work in waiting]
        return works + [work for work in self._completed if work.is_opening]

    def unanswered(self) -> list[Work]:
        """Return all jobs, including completed ones."""
        return [work for waiting in self._waiting.values() for work in waiting] + self._completed

    def waits(self, *kinds: str) -> bool:
        """Return True if there are jobs of these kinds that are not completed."""
        return any(self._waiting[kind] for kind in kinds)

    # Add and remove

    def room(self, num_aside: int = 0) -> dict[str, int]:
        """Return the number of texts to take from each lane. A lane without room is left out.

        Interactive jobs may fill a pass of `max_batch_texts`. Bulk jobs may fill one pass besides the pass aside, which
        has `num_aside` texts. Idle workers could compute further bulk jobs sooner. If interactive jobs would have to
        wait for bulk, there is room for one bulk job.
        """
        holds_up_interactive = time.monotonic() < self._expected_until and not self._embeds.encoder.runs_aside
        most_of_bulk = 1 if holds_up_interactive else self._max_batch_texts + num_aside
        held = {kind: sum(work.num_counted for work in works) for kind, works in self._waiting.items()}
        num_interactive = held[INTERACTIVE] + held[LONG]
        room = {INTERACTIVE: self._max_batch_texts - num_interactive, BULK: most_of_bulk - held[BULK]}
        return {lane: num_texts for lane, num_texts in room.items() if num_texts > 0}

    def add(self, works: Iterable[Work]) -> None:
        """Add admitted jobs, and completed jobs without a result, which have another stage or wait for their index."""
        for work in works:
            if work.kind == INTERACTIVE:
                self._expected_until = time.monotonic() + EXPECTED_S
            self._waiting[work.kind][work] = None
            self._collect([work])

    def remove(self, works: Iterable[Work]) -> None:
        """Remove jobs that need no pass: they are expired, cancelled, withdrawn, or back in the queue."""
        for work in works:
            self._waiting[work.kind].pop(work, None)
            if work in self._completed:
                self._completed.remove(work)

    # Choose and finish

    def next_batch(self, kinds: Collection[str] = SHARES.keys()) -> Batch | None:
        """Return the next pass: the texts of one suspect job, or else of jobs of these kinds. None if no text waits."""
        if suspect := next((work for work in self.unanswered() if work.delivery.is_suspect), None):
            return self._next_of(suspect.kind, [suspect])
        while kind := self._choose(kinds):
            if batch := self._next_of(kind, self._turn(kind)):
                return batch
        return None

    def tokenize_ahead(self) -> None:
        """Tokenize texts for the next pass of long or bulk jobs, while the engine computes a pass."""
        if kind := self._choose((LONG, BULK)):
            works = self._turn(kind)
            self._fill(works, self._max_cost(kind, works[0].pipeline))

    def finish(self, batch: Batch, seconds: float) -> None:
        """Record that the texts of the batch are encoded, which took `seconds` seconds."""
        if batch.kind != INTERACTIVE:
            batch.pipeline.note(batch.texts, seconds)
        done = set(batch.texts)  # jobs that came after the start of a pass aside may share its texts
        works = [work for work in self._waiting[batch.kind] if not done.isdisjoint(work.tokenized.values())]
        for work in works:
            work.end_pass(seconds)
            if work.takes_turns:  # to the end, behind the other jobs of its kind
                self._waiting[work.kind][work] = self._waiting[work.kind].pop(work)
        self._collect(works)

    def _choose(self, kinds: Collection[str]) -> str | None:
        """Return the kind of the next pass: a kind that has earned one, else the kind with the highest priority."""
        waiting = [kind for kind in kinds if self._waiting[kind]]
        pass_tokens = self._max_batch_tokens
        if time.monotonic() < self._expected_until:
            pass_tokens = min(pass_tokens, MIN_PREEMPTIBLE_TOKENS)
        owed = (kind for kind in waiting[1:] if self._credit[kind] >= pass_tokens)
        return next(owed, waiting[0] if waiting else None)

    def _turn(self, kind: str) -> list[Work]:
        """Return the jobs of the kind and of one model: while jobs of two models wait, the models take turns."""
        works = list(self._waiting[kind])
        others = [work for work in works if work.pipeline is not self._last.get(kind, self._embeds)]
        first = (others or works)[0].pipeline
        return [work for work in works if work.pipeline is first]

    def _next_of(self, kind: str, works: Sequence[Work]) -> Batch | None:
        """Return the next pass of these jobs, which have one kind and one model; None if none of their texts waits."""
        self._last[kind] = pipeline = works[0].pipeline
        bucketing, max_cost = pipeline.bucketing, self._max_cost(kind, pipeline)
        self._fill(works, max_cost)
        self._collect(works)
        waiting = (text for work in works if work.error is None for text in work.tokenized.values())
        if not (texts := list(dict.fromkeys(text for text in waiting if not text.is_done))):
            return None
        if max_cost is None:  # the batch with the oldest text
            texts = next(batch for batch in bucketing.cut(texts) if texts[0] in batch)
        else:
            texts = bucketing.part(texts, max_cost, any(work.has_untokenized for work in works))
        chosen = set(texts)
        wanting = [work for work in works if not work.error and not chosen.isdisjoint(work.tokenized.values())]
        batch = Batch(kind, texts, wanting, pipeline)
        self._charge(kind, batch.num_tokens)
        return batch

    def _fill(self, works: Sequence[Work], max_cost: float | None) -> None:
        """Tokenize inputs of one model's jobs, in order, until `WINDOW_PASSES` passes are full; equal ones become one.

        While interactive jobs are expected, only few texts are tokenized at a time, and none once such a job has come.
        A job for vectors of tokens or chunks fails as soon as its texts have too many vectors for a reply.
        """
        pipeline = works[0].pipeline
        known = {
            _key(work, text.tokens): text for work in works for text in work.tokenized.values() if not text.is_done
        }
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
                if work.options.output != "vector":
                    work.check_num_vectors(self._max_reply_vectors)
            if max_cost and self._has_come():
                return

    def _max_cost(self, kind: str, pipeline: Pipeline) -> float | None:
        """Return the largest cost of a pass that does not delay interactive jobs much; None if any cost is allowed."""
        if kind == INTERACTIVE or time.monotonic() >= self._expected_until:
            return None
        least = MIN_PREEMPTIBLE_TOKENS + pipeline.bucketing.pass_cost
        return max(least, pipeline.cost_within(MAX_ASIDE_S if pipeline.encoder.runs_aside else MAX_PREEMPTIBLE_S))

    def _charge(self, served: str, num_tokens: int) -> None:
        """Charge the tokens to the kind `served`, and credit waiting kinds of lower priority with their share."""
        kinds = list(SHARES)
        for kind in kinds[kinds.index(served) + 1 :]:
            credit = min(self._credit[kind] + SHARES[kind] * num_tokens, self._max_batch_tokens)
            self._credit[kind] = credit if self._waiting[kind] else 0.0
        # A pass with a long text may have more tokens than the kind has earned. The kind's next pass is then later.
        self._credit[served] = max(-self._max_batch_tokens, self._credit[served] - num_tokens)

    # Complete

    def _collect(self, works: Iterable[Work]) -> None:
        for work in works:
            if work.is_complete and work in self._waiting[work.kind]:
                del self._waiting[work.kind][work]
                self._completed.append(work)

    def completed(self) -> list[Work]:
        """Remove and return the completed jobs, except the ones that still wait for their index."""
        works = [work for work in self._completed if not work.is_opening]
        self._completed = [work for work in self._completed if work not in works]
        return works

    @property
    def has_completed(self) -> bool:
        """True if there are completed jobs, including jobs that wait for their index."""
        return bool(self._completed)

    def wait_for_index(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` until one of the jobs' indexes is open; return False if no job waits for its index."""
        opening = [work.opening for work in self._completed if work.opening and work.is_opening]
        if opening:
            wait(opening, timeout_s, FIRST_COMPLETED)
        return bool(opening)


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
    return _tokenize(pipeline, portion) if portion else []


def _tokenize(pipeline: Pipeline, portion: Sequence[tuple[Work, int]]) -> list[tuple[Work, int, Tokens]]:
    """Tokenize the inputs together and return them with their tokens. If the tokenizer fails on one, its job fails."""
    started, works = time.perf_counter(), dict.fromkeys(work for work, _ in portion)
    for work in works:
        work.begin()
    try:
        inputs = [work.inputs[number] for work, number in portion]
        found = pipeline.encoder.tokenize(inputs, *portion[0][0].reading)
    except Exception:  # a tokenizer may raise any exception
        found = [_tokenize_one(pipeline, work, number) for work, number in portion]
    for work in works:
        work.timings["tokenize_s"] += time.perf_counter() - started
    tokenized = [(work, number, tokens) for (work, number), tokens in zip(portion, found, strict=True)]
    for work, number, tokens in tokenized:
        if tokens.truncated:
            work.check_tokens(number, tokens)
    return tokenized


def _tokenize_one(pipeline: Pipeline, work: Work, number: int) -> Tokens:
    try:
        return pipeline.encoder.tokenize([work.inputs[number]], *work.reading)[0]
    except ShoalError as error:
        work.error = error
    except Exception as error:  # a tokenizer may raise any exception
        work.fail("the tokenizer failed", error)
    return Tokens(())
