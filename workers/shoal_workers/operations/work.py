"""Work: one job on its way through a worker, from its delivery to its answer."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
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

#: The kinds of jobs, between which a worker shares its time.
INTERACTIVE, LONG, BULK = "interactive", "long", "bulk"

#: Largest number of texts, and of bytes, in an interactive job. A larger job is a long job, and other jobs may run
#: between its passes.
MAX_SHORT_TEXTS, MAX_SHORT_BYTES = 32, 65_536


@dataclass(eq=False)
class Work:
    """A job that a worker has admitted, the state of each of its inputs, and the time that each step took.

    `inputs` are for the model of `pipeline`: texts with their `prompt` before them, or pairs of texts for a reranker.
    They are read with `options`. The number of an input is in `untokenized`, then in `tokenized`, then in `encoded`.
    `entries` has an entry of the cache for each text that is encoded or was found in the cache, by its number.
    `digests` are the cache keys of all texts, or empty for a job that does not use the cache. `stage` is the next step,
    a function of all complete jobs with the same stage; None if a complete job can be answered. `opening` is the future
    of an index that is being opened. `error` is the error that will answer the job. `timings` are empty until the
    worker begins with the job. `now` returns Redis's time in Unix seconds. `is_query` is true if the model reads the
    texts in another form than documents. `kind` is "bulk" for a job of that lane, else "long" for a large job, else
    "interactive". A job that `takes_turns` goes behind the other jobs of its kind after each of its passes.

    Each operation is a subclass. Its stage may add inputs once all inputs are encoded.
    """

    delivery: Delivery
    job: Job
    pipeline: Pipeline
    prompt: str = ""
    now: Callable[[], float] = time.time
    is_query: bool = field(default=False, kw_only=True)
    untokenized: deque[int] = field(default_factory=deque, init=False)
    tokenized: dict[int, TokenizedText] = field(default_factory=dict, init=False)
    encoded: dict[int, TokenizedText] = field(default_factory=dict, init=False)
    entries: dict[int, Entry] = field(default_factory=dict, init=False)
    digests: Sequence[bytes] = field(default=(), init=False)
    num_cached: int = field(default=0, init=False)
    num_computed: int = field(default=0, init=False)  # inputs that were computed
    num_tokens: int = field(default=0, init=False)  # tokens of these inputs
    stage: Callable[[Sequence[Any]], object] | None = field(default=None, init=False)
    opening: Future[Any] | None = field(default=None, init=False)
    error: ShoalError | None = field(default=None, init=False)
    timings: dict[str, float] = field(default_factory=dict, init=False)

    #: True if the first inputs are the texts, whose vectors may be cached.
    reads_texts: ClassVar[bool] = True

    #: True if the texts are cut into chunks.
    is_cut: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.options: Options = self.job.options
        self.made_by: Mapping[str, Any] = self.pipeline.made_by
        texts = self.job.texts if self.reads_texts else []
        self.inputs: Sequence[Any] = [self.prompt + text for text in texts] if self.prompt else texts
        self.untokenized.extend(range(len(texts)))
        self.num_lane_texts = self.job.num_lane_texts
        is_long = self.num_lane_texts > MAX_SHORT_TEXTS or len(self.delivery.data) > MAX_SHORT_BYTES
        self.kind = BULK if self.delivery.lane == BULK else LONG if is_long else INTERACTIVE
        self.takes_turns = self.is_cut or self.kind == LONG

    @classmethod
    def of_job(cls, delivery: Delivery, job: Any, served: "Served") -> "Work":
        """Return the work of a job; raise a ShoalError if this worker cannot serve the job."""
        return cls(delivery, job, served.embeds, served.embeds.encoder.prompt(job.options), served.now)

    @property
    def needs_pass(self) -> bool:
        """True if an input is not encoded yet, unless the job has an error."""
        return self.error is None and bool(self.untokenized or self.tokenized)

    @property
    def is_complete(self) -> bool:
        """True if the job can be answered, or go to its next stage. False also while its index is being opened."""
        return not self.needs_pass and (self.opening is None or self.opening.done())

    @property
    def num_waiting(self) -> int:
        """Number of inputs that are not encoded yet."""
        return len(self.untokenized) + len(self.tokenized)

    def begin(self) -> None:
        """Record that the worker begins with the job, and how long the job has waited."""
        if not self.timings:
            self.timings = dict.fromkeys(TIMINGS, 0.0)
            self.timings["queue_s"] = self.delivery.queued_s(self.now())

    def use_cache(self, entries: Sequence[Entry | None]) -> None:
        """Use the cache's entries that suit the options. `entries` has an entry or None for each text."""
        found = {n: entry for n, entry in enumerate(entries) if entry is not None and entry.answers(self.job.options)}
        self.entries, self.num_cached = found, len(found)
        self.untokenized = deque(n for n in self.untokenized if n not in found)

    # Tokenize and encode

    @property
    def reading(self) -> tuple[str, bool]:
        """The side on which the inputs are cut, and whether they are read as queries."""
        return self.options.truncation_side, self.is_query

    def refuse_cut(self, number: int, tokens: Tokens) -> None:
        """Set the error for an input that is too long. The options of the job forbid truncation."""
        has = "has" if isinstance(self.inputs[number], str) else "and the query have"
        most = self.pipeline.encoder.max_tokens(tokens.is_query)
        self.error = TextTooLong(
            f"{self._name_of(number)} {has} more than the {most} tokens of the model's context length: shorten it, cut "
            "it into passages, or let it be truncated (truncate: true)"
        )

    def check_num_vectors(self) -> None:
        """Set the error if the inputs tokenized so far have more vectors than a reply has room for."""

    def end_pass(self, seconds: float) -> None:
        """Collect the inputs that a pass of `seconds` has encoded; set the error if the engine failed on one."""
        self.timings["encode_s"] += seconds
        failed = {n: text.error for n, text in self.tokenized.items() if text.error is not None}
        if failed:
            self.fail(f"the engine failed on {', '.join(map(self._name_of, failed))}", next(iter(failed.values())))
        for number in [n for n, text in self.tokenized.items() if text.vectors is not None]:
            self.encoded[number] = text = self.tokenized.pop(number)
            self.num_computed += 1
            self.num_tokens += text.num_tokens
            if number < len(self.job.texts) and text.vectors is not None:
                characters = text.tokens.characters  # includes the prompt if the text was cut on the right
                if self.job.options.truncation_side == "right":
                    characters = max(0, characters - len(self.prompt))
                characters = min(characters, len(self.job.texts[number]))
                self.entries[number] = Entry(text.vectors, text.num_tokens, text.tokens.truncated, characters)

    def _name_of(self, number: int) -> str:
        return self.job.name_of(number)

    def fail(self, what: str, cause: Exception) -> None:
        """Set the error: `cause`, or for an unforeseen failure an error whose dead letter shows its traceback."""
        if isinstance(cause, ShoalError):
            self.error = cause
            return
        self.error = Internal(f"{what}; the worker's log has the details: leave the text out or report it")
        self.error.__cause__ = cause

    # Reply

    def answer(self) -> Answer | None:
        """Return the reply to a job without error, with its address. If that fails, set the error and return None."""
        try:
            about = {"timings": self.timings, "ignored": list(self.job.ignored), **self.made_by}
            return Answer(self.delivery, Reply(self.job.id, **about, **self._result()), self.job.reply_to)
        except Exception as error:  # for example, too little memory
            self.fail("the reply could not be made", error)
            return None

    def _result(self) -> dict[str, Any]:
        """Return the fields of the reply about the texts. Operations add their own fields."""
        pairs = [(self.entries[n], text) for n, text in enumerate(self.job.texts)]
        return {
            "output": self.job.options.outputs[0],
            "tokens": [entry.num_tokens for entry, _ in pairs],
            "truncated": [entry.truncated for entry, _ in pairs],
            "characters": [entry.characters if entry.truncated else len(text) for entry, text in pairs],
            "cached": self.num_cached,
        }

    def new_entries(self) -> list[tuple[bytes, Entry]]:
        """Return the digests and the entries that are to be put into the cache."""
        return [(self.digests[n], self.entries[n]) for n in self.encoded if n < len(self.digests)]

    def ended(self) -> EndedJob:
        """Return the log record of an answered job."""
        return EndedJob(
            self.delivery,
            self.job.id,
            self.job.op,
            self.job.traceparent,
            len(self.job.texts),
            self.num_computed,
            self.num_tokens,
            self.num_cached,
            self.timings,
            self.num_lane_texts,
            self.error,
        )


def tokenize(portion: Sequence[tuple[Work, int]]) -> list[tuple[Work, int, Tokens]]:
    """Return the tokens of inputs that are read in the same way; set the error of a job whose inputs fail."""
    (first, _), works = portion[0], dict.fromkeys(work for work, _ in portion)
    for work in works:
        work.begin()
    started, found = time.perf_counter(), list[Tokens]()
    try:
        inputs = [work.inputs[number] for work, number in portion]
        found = first.pipeline.encoder.tokenize(inputs, *first.reading)
    except Exception as error:  # a tokenizer may raise any exception
        if len(portion) > 1:
            return [one for part in portion for one in tokenize([part])]
        first.fail("the tokenizer failed", error)
    for work in works:
        work.timings["tokenize_s"] += time.perf_counter() - started
    tokenized = [(work, number, tokens) for (work, number), tokens in zip(portion, found, strict=False)]
    for work, number, tokens in tokenized:
        if tokens.truncated and not work.options.truncate and work.error is None:
            work.refuse_cut(number, tokens)
    return tokenized
