"""Work: one job on its way through a worker, from its delivery to its answer."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.cache.cache import Entry
from shoal.contract.jobs import Job
from shoal.contract.options import Options
from shoal.contract.replies import TIMINGS, Reply
from shoal.errors import Internal, ShoalError, TextTooLong
from shoal.queue.consumer import Answer, Delivery
from shoal_workers.encoding.encoder import Pipeline, TokenizedText
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.process.measurements import EndedJob

if TYPE_CHECKING:
    from shoal_workers.loop.admission import Served

#: The kinds of jobs. A worker chooses which kind comes next.
INTERACTIVE, LONG, BULK = "interactive", "long", "bulk"

#: Largest number of texts, and of bytes, in an interactive job. A larger job is long: other jobs may run between its
#: passes.
MAX_SHORT_TEXTS, MAX_SHORT_BYTES = 32, 65_536

#: A job that takes turns counts for at most this number of texts when the worker decides whether to take more jobs,
#: because other jobs run between its passes.
MAX_TEXTS_OF_LONG = 4


@dataclass(slots=True, eq=False)
class Work:
    """A job that a worker has admitted, the state of each of its inputs, and the time that each step took.

    `inputs` are for the model of `pipeline`: texts with their `prompt` before them, or pairs of texts for a reranker.
    They are tokenized with `options`. An input is identified by its number, which is in `cached`, in `untokenized` or
    in `tokenized`. `digests` are the cache keys of all texts, or empty for a job that does not use the cache. `opening`
    is the future of an index that is being opened. `error` is the error that will answer the job. `now` returns Redis's
    time in Unix seconds. `num_cut_chars` counts the characters of the chunks that `cut` has returned. `is_query` is
    true if the model reads the texts in another form than documents. `kind` is "bulk" in that lane, otherwise "long"
    for a large job, or "interactive". A job that `takes_turns` goes behind others of its kind after each of its passes.

    Each operation is a subclass. Its next stage may add inputs once all inputs are encoded.
    """

    delivery: Delivery
    job: Job
    pipeline: Pipeline
    prompt: str = ""
    now: Callable[[], float] = time.time
    digests: Sequence[bytes] = ()
    cached: dict[int, Entry] = field(default_factory=dict)
    untokenized: deque[int] = field(default_factory=deque)
    tokenized: dict[int, TokenizedText] = field(default_factory=dict)
    has_begun: bool = False
    opening: Future[Any] | None = None
    error: ShoalError | None = None
    timings: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIMINGS, 0.0))
    num_cut_chars: int = field(default=0, init=False)
    is_query: bool = field(default=False, kw_only=True)
    inputs: Sequence[Any] = field(init=False)
    options: Options = field(init=False)
    made_by: Mapping[str, Any] = field(init=False)
    num_lane_texts: int = field(init=False)
    kind: str = field(init=False)
    takes_turns: bool = field(init=False)

    #: True if the vectors of the operation's texts may be cached.
    is_cacheable: ClassVar[bool] = True

    #: True if the inputs are tokenized by `cut` instead of together with the inputs of other jobs.
    is_cut: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.options, self.made_by = self.job.options, self.pipeline.made_by
        self.inputs = self._first_inputs()
        self.untokenized.extend(range(len(self.inputs)))
        self.num_lane_texts = self.job.num_lane_texts
        is_long = self.num_lane_texts > MAX_SHORT_TEXTS or len(self.delivery.data) > MAX_SHORT_BYTES
        self.kind = BULK if self.delivery.lane == BULK else LONG if is_long else INTERACTIVE
        self.takes_turns = self.is_cut or self.kind == LONG

    @classmethod
    def admit(cls, delivery: Delivery, job: Any, served: "Served") -> "Work":
        """Return the work of a job; raise a ShoalError if this worker cannot serve the job."""
        return cls(delivery, job, served.embeds, served.embeds.encoder.prompt(job.options), served.now)

    # Inputs

    def _first_inputs(self) -> Sequence[Any]:
        return [self.prompt + text for text in self.job.texts] if self.prompt else self.job.texts

    @property
    def reading(self) -> tuple[str, bool]:
        """The side on which the inputs are cut, and whether they are read as queries."""
        return self.options.truncation_side, self.is_query

    @property
    def has_untokenized(self) -> bool:
        """True if any input is not tokenized yet."""
        return bool(self.untokenized)

    @property
    def num_waiting(self) -> int:
        """Number of inputs that are not encoded yet."""
        return len(self.untokenized) + sum(not text.is_done for text in self.tokenized.values())

    @property
    def num_counted(self) -> int:
        """Number of texts for which the job counts when the worker decides whether to take more jobs."""
        return min(self.num_waiting, MAX_TEXTS_OF_LONG) if self.takes_turns else self.num_waiting

    def use_cache(self, entries: Sequence[Entry | None]) -> None:
        """Use the cache's entries that suit the options. `entries` has one for each text, None if it is not cached."""
        suited = {n: entry for n, entry in enumerate(entries) if entry is not None and entry.answers(self.job.options)}
        self.cached = suited
        self.untokenized = deque(n for n in self.untokenized if n not in suited)

    def cut(self) -> list[tuple[int, Tokens]]:
        """Cut the next few inputs; return the number and the tokens of each. Only called if `is_cut`."""
        raise NotImplementedError

    def check_tokens(self, number: int, tokens: Tokens) -> None:
        """Set the error if the input was truncated and the options forbid that."""
        if tokens.truncated and not self.options.truncate and self.error is None:
            has = "has" if isinstance(self.inputs[number], str) else "and the query have"
            most = self.pipeline.encoder.max_tokens(tokens.is_query)
            self.error = TextTooLong(
                f"{self._name_of(number)} {has} more than the {most} tokens that the model takes: shorten it, cut it "
                "into passages, or let it be truncated (truncate: true)"
            )

    def check_num_vectors(self, max_reply_vectors: int) -> None:
        """Set the error if the inputs tokenized so far have more vectors than a reply has room for."""

    # Passes

    def begin(self) -> None:
        """Record that the worker begins with the job, and how long the job has waited."""
        if not self.has_begun:
            self.has_begun = True
            self.timings["queue_s"] = self.delivery.queued_s(self.now())

    def end_pass(self, seconds: float) -> None:
        """Record that a pass with inputs of the job has ended, and that it took `seconds`."""
        self.timings["encode_s"] += seconds

    @property
    def is_complete(self) -> bool:
        """True if nothing is left for the engine: the job has an error, or each input has vectors or an error."""
        return self.error is not None or (
            not self.has_untokenized and all(text.is_done for text in self.tokenized.values())
        )

    @property
    def is_opening(self) -> bool:
        """True while the job waits for its index to be opened."""
        return self.opening is not None and not self.opening.done()

    @property
    def num_computed(self) -> tuple[int, int]:
        """Number of the job's inputs that the engine has encoded, and number of their tokens."""
        computed = [text for text in self.tokenized.values() if text.vectors is not None]
        return len(computed), sum(text.num_tokens for text in computed)

    @property
    def next_stage(self) -> Callable[[Sequence[Any]], object] | None:
        """The function of the next stage, called with all complete jobs that share it; None if there is none."""
        return None

    @property
    def has_result(self) -> bool:
        """True if a complete job can be answered; False if it needs another stage, or waits for its index."""
        return True

    def check_encoded(self) -> None:
        """Set the error if the engine failed on an input."""
        failed = {n: text.error for n, text in self.tokenized.items() if text.error is not None}
        if failed:
            self.fail(f"the engine failed on {', '.join(map(self._name_of, failed))}", next(iter(failed.values())))

    def _name_of(self, number: int) -> str:
        return self.job.name_of(number)

    def fail(self, what: str, cause: Exception) -> None:
        """Set the error for an unforeseen failure. The dead letter shows the traceback of `cause`."""
        self.error = Internal(f"{what}; the worker's log has the details: leave the text out or report it")
        self.error.__cause__ = cause

    # Vectors

    def entries(self) -> list[Entry]:
        """Return a cache entry for each text. All texts must be encoded."""
        return [self.cached.get(n) or self._entry(n) for n in range(len(self.job.texts))]

    def new_entries(self) -> dict[bytes, Entry]:
        """Return the newly computed entries by digest, to be put into the cache."""
        numbers = [n for n, text in self.tokenized.items() if n < len(self.digests) and text.vectors is not None]
        return {self.digests[n]: self._entry(n) for n in numbers}

    def _entry(self, number: int) -> Entry:
        """Return the cache entry of an encoded text. Its number of characters excludes the prompt."""
        text, tokens = self.tokenized[number], self.tokenized[number].tokens
        assert text.vectors is not None
        if self.job.options.truncation_side == "right":
            characters = max(0, tokens.characters - len(self.prompt))
        else:
            characters = min(tokens.characters, len(self.job.texts[number]))
        return Entry(text.vectors, text.num_tokens, tokens.truncated, characters)

    # Reply

    def answer(self) -> Answer | None:
        """Return the reply to a job without error, with its address. If that fails, set the error and return None."""
        try:
            reply = Reply(id=self.job.id, timings=self.timings, **self.made_by, **self._result())
            if self.job.ignored:
                reply = replace(reply, ignored=list(self.job.ignored))
            return Answer(self.delivery, reply, self.job.reply_to)
        except Exception as error:  # for example, too little memory
            self.fail("the reply could not be made", error)
            return None

    def _result(self) -> dict[str, Any]:
        """Return the fields of the reply: the operation's own fields, and the common fields about the texts."""
        entries = self.entries()
        return self._own_result(entries) | {
            "output": self.job.options.outputs[0],
            "tokens": [entry.num_tokens for entry in entries],
            "truncated": [entry.truncated for entry in entries],
            "characters": [entry.num_read(text) for entry, text in zip(entries, self.job.texts, strict=True)],
            "cached": len(self.cached),
        }

    def _own_result(self, entries: Sequence[Entry]) -> dict[str, Any]:
        """Return the operation's own fields of the reply."""
        raise NotImplementedError

    def ended(self) -> EndedJob:
        """Return the log record of an answered job."""
        num_computed, num_tokens = self.num_computed
        return EndedJob(
            self.delivery,
            self.job.id,
            self.job.op,
            self.job.traceparent,
            len(self.job.texts),
            num_computed,
            num_tokens,
            len(self.cached),
            self.timings,
            self.num_lane_texts,
            self.error,
        )
