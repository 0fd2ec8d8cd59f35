"""The scheduler: holds admitted jobs by priority and chooses the texts of the next forward pass. Knows no tensors.

Every pass is chosen anew, so preemption is only the next choice: while a long bulk job is under way, an interactive job
that has come meanwhile is simply chosen first.
"""

import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from itertools import accumulate

from shoal_workers.encoding.encoder import TokenizedText
from shoal_workers.pipeline import Pipeline
from shoal_workers.work import BULK, INTERACTIVE, LONG, Work

#: Longest that a pass of long or bulk jobs that runs aside should take while interactive jobs are expected, by the
#: speed of the passes before, in seconds.
MAX_ASIDE_S = 0.1

#: Longest that such a pass should take, in seconds, where it cannot run aside: interactive jobs wait for its end.
MAX_PREEMPTIBLE_S = 0.012

#: Tokens that such a pass may have however slow passes are.
MIN_PREEMPTIBLE_TOKENS = 64

#: Most characters of long or bulk jobs that are tokenized at a time while interactive jobs are expected.
MAX_PREEMPTIBLE_CHARS = 4_096

#: Most texts of jobs that are answered in one go while an interactive job may come, which would wait meanwhile. A job
#: with more texts is answered by itself.
MAX_ANSWERED_TEXTS = 16

#: Time after the last interactive job in which more of them are expected, in seconds.
EXPECTED_S = 1.0

#: The kinds of jobs, in the order of their priority, and the tokens that each is served for each token of a kind before
#: it while both wait.
SHARES = {INTERACTIVE: 1.0, LONG: 1 / 4, BULK: 1 / 8}

#: Texts that a job of chunks counts as, at most, where the worker decides how much more to take.
MAX_TEXTS_OF_CHUNKED = 4

#: Texts that a long job counts as in the same way.
MAX_TEXTS_OF_LONG = 16


@dataclass(slots=True)
class Batch:
    """The texts of one forward pass of a model, which may have `max_tokens`, and the jobs that wait for them.

    All texts are different.
    """

    kind: str
    texts: list[TokenizedText]
    works: list[Work]
    max_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(text.num_tokens for text in self.texts)


@dataclass(slots=True)
class _Waiting:
    """The jobs of one kind in order, and the tokens that jobs of higher priority owe them.

    `was_rerank` is true if the last pass was the reranker's.
    """

    works: dict[Work, None] = field(default_factory=dict)  # ordered, as a set
    credit: float = 0.0
    was_rerank: bool = False

    def next_works(self) -> list[Work]:
        """Return the jobs of which the next pass is: the two models take turns while jobs of both wait."""
        others = [work for work in self.works if work.uses_reranker != self.was_rerank]
        self.was_rerank = self.was_rerank != bool(others)
        return others or list(self.works)

    @property
    def num_texts(self) -> int:
        """Texts that are not encoded yet; of some jobs few count, as others are served in between."""
        return sum(map(_counted, self.works))


class Scheduler:
    """The jobs that a worker has admitted and not answered. For one thread.

    `reranks` is the pipeline of the reranker, if there is one, and `embeds` that of the model which makes vectors.
    A job for vectors of tokens or chunks fails as soon as its texts have more than `max_reply_vectors` of them.
    `interactive_has_come` returns True while an interactive job is to be taken: no more texts of others are tokenized.
    """

    def __init__(
        self,
        embeds: Pipeline,
        reranks: Pipeline | None = None,
        max_batch_texts: int = 64,
        max_reply_vectors: int = sys.maxsize,
        interactive_has_come: Callable[[], bool] = lambda: False,
    ):
        self._embeds = embeds
        self._reranks = reranks or embeds
        self._max_batch_tokens = embeds.bucketing.max_batch_tokens
        self._max_batch_texts = max_batch_texts
        self._max_reply_vectors = max_reply_vectors
        self._waiting = {kind: _Waiting() for kind in SHARES}
        self._completed: list[Work] = []
        self._opening: list[Work] = []
        self._interactive_has_come = interactive_has_come
        self._expected_until = 0.0

    def waiting(self) -> list[Work]:
        """Return the jobs that are not completed, and searches whose index is being opened."""
        return [work for waiting in self._waiting.values() for work in waiting.works] + self._opening

    def unanswered(self) -> list[Work]:
        """Return all jobs that the worker holds, completed ones included."""
        return self.waiting() + self._completed

    def waits(self, kind: str) -> bool:
        """Return True if jobs of the kind are not completed."""
        return bool(self._waiting[kind].works)

    # Add and remove

    def room(self) -> dict[str, int]:
        """Return the number of texts that the worker should take of each lane; 0 for a lane that is missing.

        A pass of interactive jobs is full with `max_batch_texts`. Of the others the worker takes no more than it can
        compute soon, because idle workers may do so sooner: one job while interactive jobs would wait for it.
        """
        most_of_bulk = 1 if self.expects_interactive() and not self._embeds.runs_aside() else self._max_batch_texts
        held = {kind: waiting.num_texts for kind, waiting in self._waiting.items()}
        num_interactive = held[INTERACTIVE] + held[LONG]
        room = {INTERACTIVE: self._max_batch_texts - num_interactive, BULK: most_of_bulk - held[BULK]}
        return {lane: num_texts for lane, num_texts in room.items() if num_texts > 0}

    def add(self, works: Iterable[Work]) -> None:
        """Take in jobs that were admitted, and searches that go on once the engine or the index they wait for is done.

        These are searches whose second stage has begun, and those whose index is being opened.
        """
        for work in works:
            if work.is_opening:
                self._opening.append(work)
                continue
            if work.kind == INTERACTIVE:
                self._expected_until = time.monotonic() + EXPECTED_S
            self._waiting[work.kind].works[work] = None
            self._collect([work])

    def remove(self, works: Iterable[Work]) -> None:
        """Forget jobs that are answered already: expired, cancelled, or claimed by another worker."""
        for work in works:
            self._waiting[work.kind].works.pop(work, None)
            if work in self._opening:
                self._opening.remove(work)

    # Choose and finish

    def next_batch(self, kinds: Collection[str] = SHARES.keys()) -> Batch | None:
        """Choose the texts of the next forward pass and tokenize as many as that needs; None if no text waits.

        Jobs of the given kinds are chosen; a suspect is chosen first, and no other job before it is answered.
        """
        if suspect := next((work for work in self.unanswered() if work.delivery.is_suspect), None):
            return self._next_of(suspect.kind, [suspect])
        while kind := self._choose(kinds):
            if batch := self._next_of(kind, self._waiting[kind].next_works()):
                return batch
        return None

    def _next_of(self, kind: str, works: Sequence[Work]) -> Batch | None:
        """Choose the texts of the next pass of jobs of that kind; None if none of their texts waits."""
        self._fill(kind, works)
        self._collect(works)
        if not (window := _window(works)):
            return None
        batch = self._batch(kind, window, works)
        self._charge(kind, batch.num_tokens)
        return batch

    def may_run_aside(self, batch: Batch) -> bool:
        """Return True if interactive jobs may be computed while the batch is. A suspect shares no time with any job."""
        is_suspect = batch.works[0].delivery.is_suspect
        return batch.kind != INTERACTIVE and self._pipeline(batch.works).runs_aside() and not is_suspect

    def finish(self, batch: Batch, seconds: float) -> None:
        """Note that the texts of the batch are encoded, which took `seconds`."""
        if batch.kind != INTERACTIVE:
            pipeline = self._pipeline(batch.works)
            pipeline.speed.add(pipeline.bucketing.cost_of(batch.texts), seconds)
        for work in batch.works:
            work.timings["encode_s"] += seconds
            work.take_encoded_chunks()
            works = self._waiting[work.kind].works
            if (work.chunked or work.kind == LONG) and work in works:  # so other jobs have the next turn
                works[work] = works.pop(work)
        self._collect(batch.works)

    def completed(self) -> list[Work]:
        """Return the jobs that were completed since the last call: encoded, with an open index, or with an error."""
        completed, self._completed = self._completed, []
        opening, self._opening = self._opening, []
        for work in opening:
            (self._opening if work.is_opening else completed).append(work)
        return completed

    def wait_for_index(self, timeout_s: float) -> None:
        """Wait until one of the indexes that are being opened for jobs is open; return at once if there is none."""
        if self._opening:
            wait([work.opening for work in self._opening if work.opening], timeout_s, FIRST_COMPLETED)

    def completed_portion(self) -> list[Work]:
        """Return the interactive jobs of these, or else a few of the others, while interactive ones are expected."""
        completed = self.completed()
        if not self.expects_interactive():
            return completed
        interactive = [work for work in completed if work.kind == INTERACTIVE]
        sizes = accumulate(len(work.job.texts) for work in completed)
        few = [work for work, size in zip(completed, sizes, strict=True) if size <= MAX_ANSWERED_TEXTS]
        portion = interactive or few or completed[:1]
        self._completed = [work for work in completed if work not in portion]
        return portion

    @property
    def has_completed(self) -> bool:
        """True if there are completed jobs that are not answered."""
        return bool(self._completed)

    def expects_interactive(self) -> bool:
        """Return True for a while after an interactive job."""
        return time.monotonic() < self._expected_until

    def _choose(self, kinds: Collection[str]) -> str | None:
        """Return the kind that is served next: one that is owed a share, else that of the highest priority."""
        waiting = [kind for kind in kinds if self._waiting[kind].works]
        pass_tokens = self._max_batch_tokens
        if self.expects_interactive():
            pass_tokens = min(pass_tokens, MIN_PREEMPTIBLE_TOKENS)
        owed = (kind for kind in waiting[1:] if self._waiting[kind].credit >= pass_tokens)
        return next(owed, waiting[0] if waiting else None)

    def _charge(self, served: str, num_tokens: int) -> None:
        """Give each waiting kind of lower priority its share of the tokens that another one is served."""
        kinds = list(SHARES)
        for kind in kinds[kinds.index(served) + 1 :]:
            waiting = self._waiting[kind]
            waiting.credit = min(waiting.credit + SHARES[kind] * num_tokens, self._max_batch_tokens)
            if not waiting.works:
                waiting.credit = 0.0
        # A long text can take more than is owed: the kind then waits the longer for its next share.
        credit = self._waiting[served].credit - num_tokens
        self._waiting[served].credit = max(-self._max_batch_tokens, credit)

    def _fill(self, kind: str, works: Sequence[Work]) -> None:
        """Tokenize texts for the next passes of the jobs."""
        pipeline = self._pipeline(works)
        if self._is_preemptible(kind):
            cost, has_come = _max_cost(pipeline), self._interactive_has_come
            pipeline.fill(works, self._max_reply_vectors, cost, MAX_PREEMPTIBLE_CHARS, has_come)
        else:
            pipeline.fill(works, self._max_reply_vectors)

    def _is_preemptible(self, kind: str) -> bool:
        """Return True if interactive jobs are expected, which would wait for a pass of the kind."""
        return kind != INTERACTIVE and self.expects_interactive()

    def _batch(self, kind: str, window: list[TokenizedText], works: Sequence[Work]) -> Batch:
        """Return the batch that has the oldest text, or a short one while interactive jobs are expected."""
        pipeline = self._pipeline(works)
        bucketing = pipeline.bucketing
        if self._is_preemptible(kind):
            texts = bucketing.part(window, _max_cost(pipeline), any(work.has_untokenized for work in works))
        else:
            texts = next(batch for batch in bucketing.cut(window) if window[0] in batch)
        chosen = set(texts)
        wanting = [work for work in works if not work.error and not chosen.isdisjoint(work.tokenized.values())]
        return Batch(kind, texts, wanting, bucketing.max_batch_tokens)

    def _collect(self, works: Iterable[Work]) -> None:
        """Move the jobs that are completed out of those that wait."""
        for work in works:
            if work.is_complete and work in self._waiting[work.kind].works:
                del self._waiting[work.kind].works[work]
                self._completed.append(work)

    def _pipeline(self, works: Sequence[Work]) -> Pipeline:
        """Return the pipeline of the jobs, which is the same for all of them."""
        return self._reranks if works[0].uses_reranker else self._embeds


def _counted(work: Work) -> int:
    """Return the texts that a job counts as where the worker decides how much more to take."""
    if work.chunked:
        return min(work.num_waiting, MAX_TEXTS_OF_CHUNKED)
    return min(work.num_waiting, MAX_TEXTS_OF_LONG) if work.kind == LONG else work.num_waiting


def _max_cost(pipeline: Pipeline) -> float:
    """Return the most that a pass may cost for which interactive jobs wait."""
    least = MIN_PREEMPTIBLE_TOKENS + pipeline.bucketing.pass_cost
    return max(least, pipeline.speed.cost_within(MAX_ASIDE_S if pipeline.runs_aside() else MAX_PREEMPTIBLE_S))


def _window(works: Iterable[Work]) -> list[TokenizedText]:
    """Return the tokenized texts that are not encoded yet, in the order of their jobs, each once."""
    texts = (text for work in works if work.error is None for text in work.tokenized.values())
    return list(dict.fromkeys(text for text in texts if not text.is_done))
