"""The scheduler, which keeps the admitted jobs and chooses the texts of the next batch. It knows no tensors.

Texts are tokenized a few passes ahead, so that texts of similar length share a pass.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence

from shoal_workers.encoding.bucketing import PASS_COST
from shoal_workers.encoding.encoder import Pipeline, TokenizedText
from shoal_workers.loop.batch import Batch
from shoal_workers.operations.embed import ChunksWork
from shoal_workers.operations.work import BULK, INTERACTIVE, LONG, Work, tokenize

#: Seconds after an interactive job during which more interactive jobs are expected.
EXPECTED_S = 1.0

#: Longest pass aside for long or bulk jobs while interactive jobs are expected, in seconds. Its time is estimated from
#: the speed of earlier passes.
MAX_ASIDE_S = 0.1

#: Longest pass for long or bulk jobs that cannot run aside, in seconds. Interactive jobs wait for its end.
MAX_PREEMPTIBLE_S = 0.012

#: Number of tokens that a pass for long or bulk jobs may always have, even if passes are slow.
MIN_PREEMPTIBLE_TOKENS = 64

#: Texts are tokenized in advance for this number of passes.
WINDOW_PASSES = 2

#: Largest number of characters that are tokenized at a time, in at most 50 ms even with the longest texts and slowest
#: scripts.
MAX_TOKENIZED_CHARS = 16_384

#: Largest number of characters that are tokenized at a time while interactive jobs are expected.
MAX_PREEMPTIBLE_CHARS = 4_096

#: Largest number of portions, each of `MAX_TOKENIZED_CHARS`, that are tokenized before a pass.
MAX_PORTIONS = 8

#: Once the chunks that were cut before a pass have this number of characters, no more are cut. A limit on tokens would
#: not be enough: equal chunks count once, so a text that repeats itself would be cut for seconds while other jobs wait.
ENOUGH_CHUNK_CHARS = 8_192

#: A job that takes turns counts for at most this number of texts when the worker decides whether to take more jobs,
#: because other jobs run between its passes.
MAX_TEXTS_OF_LONG = 4

#: The kinds of jobs in the order of their priority, each with its share: the tokens that the kind earns while it waits,
#: for each computed token of a kind with a higher priority.
SHARES = {INTERACTIVE: 1.0, LONG: 1 / 4, BULK: 1 / 8}


class Scheduler:
    """The admitted jobs of a worker that are not answered yet. Not thread-safe.

    `embeds` is the pipeline of the embedding model. `has_come` returns True if an interactive job waits in the queue.
    """

    def __init__(self, embeds: Pipeline, max_batch_texts: int = 64, has_come: Callable[[], bool] = lambda: False):
        self._embeds = embeds
        self._max_batch_tokens = embeds.bucketing.max_batch_tokens
        self._max_batch_texts = max_batch_texts
        self._has_come = has_come
        self._expected_until = 0.0
        self._credit = dict.fromkeys(SHARES, 0.0)  # the tokens that each kind has earned
        self._last: dict[str, Pipeline] = {}  # for each kind, the pipeline of its last pass
        #: All jobs, in the order of their turns: an ordered set.
        self.works: dict[Work, None] = {}

    def waits(self, *kinds: str) -> bool:
        """Return True if jobs of these kinds have inputs that are not encoded."""
        return any(work.kind in kinds and work.needs_pass for work in self.works)

    # Add and complete

    def room(self, num_aside: int = 0) -> dict[str, int]:
        """Return the number of texts to take from each lane. A lane without room is left out.

        Interactive jobs may fill a pass of `max_batch_texts`. Bulk jobs may fill one pass besides the pass aside, which
        has `num_aside` texts; more bulk jobs are left for idle workers. If interactive jobs would have to wait for
        bulk, there is room for one bulk job. A job that takes turns counts for few texts.
        """
        holds_up_interactive = time.monotonic() < self._expected_until and not self._embeds.encoder.runs_aside
        room = {
            INTERACTIVE: self._max_batch_texts,
            BULK: 1 if holds_up_interactive else self._max_batch_texts + num_aside,
        }
        for work in self.works:
            num_texts = min(work.num_waiting, MAX_TEXTS_OF_LONG) if work.takes_turns else work.num_waiting
            room[BULK if work.kind == BULK else INTERACTIVE] -= num_texts
        return {lane: num_texts for lane, num_texts in room.items() if num_texts > 0}

    def add(self, works: Iterable[Work]) -> None:
        """Add admitted jobs, and jobs that have another stage or wait for their index."""
        for work in works:
            if work.kind == INTERACTIVE:
                self._expected_until = time.monotonic() + EXPECTED_S
            self.works[work] = None

    def completed(self) -> list[Work]:
        """Remove and return the completed jobs."""
        works = [work for work in self.works if work.is_complete]
        for work in works:
            del self.works[work]
        return works

    # Choose and finish

    def next_batch(self, kinds: Collection[str] = SHARES.keys()) -> Batch | None:
        """Return the next batch: from one suspect if any, else from jobs of these kinds; None if no text waits."""
        if suspect := next((work for work in self.works if work.delivery.deaths), None):
            return self._batch([suspect]) if suspect.needs_pass else None
        while works := self._turn(kinds):
            if batch := self._batch(works):
                return batch
        return None

    def tokenize_ahead(self) -> None:
        """Tokenize texts for the next pass of long or bulk jobs, while the engine computes a pass."""
        if works := self._turn((LONG, BULK)):
            self._fill(works, self._max_cost(works[0].pipeline))

    def finish(self, batch: Batch, seconds: float) -> None:
        """Record that the texts of the batch are encoded, which took `seconds` seconds."""
        if batch.kind != INTERACTIVE:
            batch.pipeline.note(batch.texts, seconds)
        done = set(batch.texts)  # jobs that came after the start of a pass aside may share its texts
        for work in [work for work in self.works if not done.isdisjoint(work.tokenized.values())]:
            work.end_pass(seconds)
            if work.takes_turns:  # moved to the end, behind the other jobs of its kind
                self.works[work] = self.works.pop(work)

    def _turn(self, kinds: Collection[str]) -> list[Work]:
        """Return the jobs from whose texts the next batch is chosen. They have one kind and one model.

        A kind that has earned a pass comes first, then the kind with the highest priority. While jobs of two models
        wait, the models take turns.
        """
        waiting = {kind: [work for work in self.works if work.kind == kind and work.needs_pass] for kind in kinds}
        found = [kind for kind in kinds if waiting[kind]]
        if not found:
            return []
        pass_tokens = self._max_batch_tokens
        if time.monotonic() < self._expected_until:
            pass_tokens = min(pass_tokens, MIN_PREEMPTIBLE_TOKENS)
        kind = next((kind for kind in found[1:] if self._credit[kind] >= pass_tokens), found[0])
        others = [work for work in waiting[kind] if work.pipeline is not self._last.get(kind, self._embeds)]
        pipeline = (others or waiting[kind])[0].pipeline
        return [work for work in waiting[kind] if work.pipeline is pipeline]

    def _batch(self, works: Sequence[Work]) -> Batch | None:
        """Return the next batch of these jobs, which have one kind and one model; None if no text is left."""
        kind, pipeline = works[0].kind, works[0].pipeline
        self._last[kind] = pipeline
        max_cost = None if kind == INTERACTIVE else self._max_cost(pipeline)
        self._fill(works, max_cost)
        works = [work for work in works if work.error is None]
        waiting = (text for work in works for text in work.tokenized.values() if not text.is_done)
        if not (texts := list(dict.fromkeys(waiting))):
            return None
        if max_cost is None:  # take the batch that has the oldest text
            texts = next(batch for batch in pipeline.bucketing.cut(texts) if texts[0] in batch)
        else:
            texts = pipeline.bucketing.part(texts, max_cost, any(work.untokenized for work in works))
        chosen = set(texts)
        batch = Batch(kind, texts, [work for work in works if not chosen.isdisjoint(work.tokenized.values())], pipeline)
        self._charge(kind, batch.num_tokens)
        return batch

    def _fill(self, works: Sequence[Work], max_cost: float | None) -> None:
        """Tokenize inputs of one model's jobs, in order, for `WINDOW_PASSES` passes. Equal inputs become one text.

        While interactive jobs are expected, few texts are tokenized at a time, and none once such a job has come.
        """
        known = {text.key: text for work in works for text in work.tokenized.values() if not text.is_done}
        enough_tokens = WINDOW_PASSES * (max_cost or works[0].pipeline.bucketing.max_batch_tokens)
        max_chars = MAX_PREEMPTIBLE_CHARS if max_cost else MAX_TOKENIZED_CHARS
        num_cut_chars = 0
        for _ in range(MAX_PORTIONS):
            if num_cut_chars >= ENOUGH_CHUNK_CHARS or not (portion := _next_portion(works, enough_tokens, max_chars)):
                return
            first, _ = portion[0]
            if isinstance(first, ChunksWork):
                found, num_chars = first.cut()
                num_cut_chars += num_chars
            else:
                found = tokenize(portion)
            for work, number, tokens in found:
                new = TokenizedText(tokens, work.options.pooling, work.options.outputs)
                work.tokenized[number] = known.setdefault(new.key, new)
            for work in dict.fromkeys(work for work, _ in portion):
                if work.options.output != "vector":
                    work.check_num_vectors()
            if max_cost and self._has_come():
                return

    def _max_cost(self, pipeline: Pipeline) -> float | None:
        """Return the largest cost of a pass that does not delay interactive jobs much; None if any cost is allowed."""
        if time.monotonic() >= self._expected_until:
            return None
        least = MIN_PREEMPTIBLE_TOKENS + PASS_COST
        return max(least, pipeline.cost_within(MAX_ASIDE_S if pipeline.encoder.runs_aside else MAX_PREEMPTIBLE_S))

    def _charge(self, served: str, num_tokens: int) -> None:
        """Charge the tokens to the kind `served`, and credit waiting kinds of lower priority with their share."""
        waiting, kinds = {work.kind for work in self.works if work.needs_pass}, list(SHARES)
        for kind in kinds[kinds.index(served) + 1 :]:
            credit = min(self._credit[kind] + SHARES[kind] * num_tokens, self._max_batch_tokens)
            self._credit[kind] = credit if kind in waiting else 0.0
        # A pass with a long text may have more tokens than the kind has earned. The kind then waits longer for its next
        # pass.
        self._credit[served] = max(-self._max_batch_tokens, self._credit[served] - num_tokens)


def _next_portion(works: Iterable[Work], enough_tokens: float, max_chars: int) -> list[tuple[Work, int]]:
    """Take the next inputs to tokenize: one, or several of up to `max_chars` in total. Return their jobs and numbers.

    All these inputs have the same `Work.reading`. A job that cuts its texts is returned alone. The list is empty if the
    first jobs already have `enough_tokens`.
    """
    portion: list[tuple[Work, int]] = []
    num_tokens = num_chars = 0
    for work in works:
        num_tokens += sum(text.num_tokens for text in work.tokenized.values())
        if num_tokens >= enough_tokens:
            break
        if work.error or not work.untokenized or (portion and portion[0][0].reading != work.reading):
            continue
        if work.is_cut:
            return portion or [(work, 0)]
        while work.untokenized:
            given = work.inputs[work.untokenized[0]]
            num_chars += len(given) if isinstance(given, str) else sum(map(len, given))
            if portion and num_chars > max_chars:
                return portion
            portion.append((work, work.untokenized.popleft()))
    return portion
