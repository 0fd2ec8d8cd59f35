"""Jobs: the fields that all requests to the workers share. `shoal.operations` has a class for each operation."""

import os
import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

from shoal.contract import traceparent, wire
from shoal.contract.checks import check_number, check_range, check_string, is_header_text
from shoal.contract.excerpt import excerpt, kind
from shoal.contract.keys import NAME, NAME_RULE
from shoal.contract.options import DEFAULT_OPTIONS, OPTION_DEFAULTS, Options
from shoal.contract.replies import Reply
from shoal.errors import InvalidRequest, InvalidText, MalformedJob, TooLarge

T = TypeVar("T")

# The names of the lanes. The HTTP schema is also made from them.
Lane = Literal["interactive", "bulk"]

# The names of the operations. The HTTP schema is also made from them.
Operation = Literal["embed", "search", "rerank", "tokenize", "decode"]

#: The names of all operations.
OPERATION_NAMES: tuple[str, ...] = get_args(Operation)

#: The names of all lanes, the lane with the highest priority first.
LANES: tuple[str, ...] = get_args(Lane)

#: Longest time from now to a deadline, in seconds: a year. A later deadline is taken for a number in a wrong unit.
MAX_DEADLINE_S = 365 * 86_400

#: Largest weight of a job in its lane's load, in texts. The Lua scripts use the same number.
MAX_LANE_TEXTS = 999_999

#: Highest number that a text can have in a list that is split into jobs. No list has this many texts.
MAX_TEXT_NUMBER = 2**53

#: Largest number of texts in a job if a list is split, so that several workers share it and no other job waits long.
TEXTS_PER_JOB = 32

#: Largest number of texts in an HTTP request if a list is split.
MAX_REQUEST_TEXTS = 256


@dataclass(frozen=True, slots=True)
class Job:
    """A job: its texts, their options, and fields that all operations share. Each operation is a subclass.

    `first_text` is the number of the job's first text in a longer list, for messages. `deadline` is in Unix seconds by
    Redis's clock; a worker computes it from `timeout_s`, the seconds after the put. The reply goes to the address
    `reply_to`; without it, Redis keeps a record and a result of the job. With a `fingerprint`, only the model with this
    fingerprint answers. `ignored` names unknown fields that came on the wire. Raises InvalidRequest for a wrong field.
    """

    texts: list[str] = field(default_factory=list)
    options: Options = DEFAULT_OPTIONS
    _: KW_ONLY
    id: str = field(default_factory=lambda: new_id())
    deadline: float | None = None
    timeout_s: float | None = None
    reply_to: str | None = None
    traceparent: str | None = None
    first_text: int = 0
    fingerprint: str | None = None
    ignored: tuple[str, ...] = field(default=(), compare=False)

    #: The name of the operation.
    op: ClassVar[str] = ""
    #: The API's route for such jobs; empty if there is no route for programs.
    path: ClassVar[str] = ""
    #: The names of the operation's own fields, here and on the wire.
    own_names: ClassVar[tuple[str, ...]] = ()
    #: The names of the operation's own options. Options of texts, such as `prompt_name`, are not among them.
    option_names: ClassVar[tuple[str, ...]] = ()
    #: The field of a reply that has one answer for each item, for example for each text.
    answer_name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_name("id", self.id)
        if self.reply_to is not None:
            check_name("reply_to", self.reply_to)
        if not isinstance(self.texts, list):
            raise InvalidRequest(f"texts is {kind(self.texts)}: it takes a list of strings")
        if not self.texts and self._takes_texts:
            raise InvalidRequest("the list of texts is empty: send at least one")
        for n, text in enumerate(self.texts):
            if not isinstance(text, str):
                raise InvalidRequest(f"text {n} is {kind(text)}: it must be a string")
        is_number = isinstance(self.deadline, int | float) and not isinstance(self.deadline, bool)
        if self.deadline is not None and not (is_number and abs(self.deadline) < 2**63):
            raise InvalidRequest(f"deadline is {excerpt(self.deadline)}: it takes Unix seconds")
        if self.timeout_s is not None:
            check_number("timeout_s", self.timeout_s, 0, MAX_DEADLINE_S)
        check_range("first_text", self.first_text, 0, MAX_TEXT_NUMBER)
        if self.fingerprint is not None:
            check_string("fingerprint", self.fingerprint, "a fingerprint of replies")
            if not is_header_text(self.fingerprint):
                raise InvalidRequest(
                    f"fingerprint is {excerpt(self.fingerprint)}: it takes a fingerprint of replies, printable ASCII"
                )
        self._check()

    # Subclasses override these

    @property
    def _takes_texts(self) -> bool:
        return True

    def _check(self) -> None:
        """Raise InvalidRequest for a wrong field of the operation."""

    @property
    def queries(self) -> dict[str, str]:
        """The queries for which texts are scored, by the names of their fields."""
        return {}

    @property
    def is_one_question(self) -> bool:
        """True if the job must not be split, because the parts together would give other answers."""
        return False

    @property
    def texts_per_job(self) -> int:
        """The largest weight of a job, in texts, if a list is split."""
        return TEXTS_PER_JOB

    @property
    def texts_per_request(self) -> int:
        """The largest number of texts in an HTTP request if a list is split."""
        return MAX_REQUEST_TEXTS

    @property
    def num_lists(self) -> int:
        """The number of answers in the reply: one for each text."""
        return len(self.texts)

    def lane_sizes(self) -> list[int]:
        """Return the weight of each text in its lane's load, in texts. A chunk or a hit to rerank weighs 1."""
        return [1] * len(self.texts)

    @property
    def num_lane_texts(self) -> int:
        """The weight of the job in its lane's load, in texts."""
        return min(MAX_LANE_TEXTS, sum(self.lane_sizes()))

    def name_of(self, number: int) -> str:
        """Return a name for text `number` of this job, for messages. It has the text's number in the caller's list."""
        return f"text {self.first_text + number}"

    def check_sizes(self, max_texts: int) -> None:
        """Raise TooLarge if the job would occupy a worker for too long. A job may have `max_texts` texts."""

    def answers_of(self, reply: Reply) -> list[Any]:
        """Return the fields of the reply that have one answer for each item. A field that the reply lacks is None."""
        return [getattr(reply, self.answer_name)]

    def check_answers(self, reply: Reply) -> None:
        """Raise MalformedJob unless the reply has an answer for each item."""
        if any(answer is None or len(answer) != self.num_lists for answer in self.answers_of(reply)):
            raise MalformedJob(f"the answer does not fit a request with {len(self.texts):,} texts")

    def body(self) -> dict[str, Any]:
        """Return the body of an HTTP request with the content of the job."""
        return {"inputs": self.texts} | self._asked()

    # Subclasses share these

    def check_texts(self, max_texts: int, max_text_chars: int, subject: str, remedy: str) -> None:
        """Raise TooLarge for too many texts or characters. The message about texts contains `subject` and `remedy`."""
        if len(self.texts) > max_texts:  # all texts of a request go to one lane
            setting = "SHOAL_MAX_JOB_TEXTS" if subject == "job" else "SHOAL_MAX_BACKLOG_TEXTS"
            found = f"the {subject} has {len(self.texts):,} texts and may have {max_texts:,} ({setting})"
            raise TooLarge(f"{found}: {remedy}")
        for number, text in enumerate(self.texts):
            if len(text) > max_text_chars:
                raise TooLarge(
                    f"{self.name_of(number)} has {len(text):,} characters and may have {max_text_chars:,} "
                    "(SHOAL_MAX_TEXT_CHARS): cut it into passages"
                )
        for name, query in self.queries.items():
            if len(query) > max_text_chars:
                raise TooLarge(f"{name} has {len(query):,} characters and may have {max_text_chars:,}: shorten it")

    def pinned(self, fingerprint: str | None) -> Self:
        """Return the job for workers with this fingerprint only. A job that has a fingerprint keeps it."""
        return replace(self, fingerprint=fingerprint) if fingerprint and not self.fingerprint else self

    def pack(self, trace: str | None = None, timeout_s: float | None = None) -> bytes:
        """Return the job as msgpack, with this trace and timeout unless the job has its own. Raises InvalidText."""
        values: dict[str, Any] = {"v": wire.VERSION, "id": self.id, "op": self.op, "texts": self.texts}
        values |= self._asked()
        if self.deadline is not None:
            values["deadline"] = self.deadline
        if (timeout_s := timeout_s if self.timeout_s is None else self.timeout_s) is not None:
            values["timeout_s"] = timeout_s
        if self.reply_to is not None:
            values["reply_to"] = self.reply_to
        if self.fingerprint:
            values["fingerprint"] = self.fingerprint
        if trace := (self.traceparent and traceparent.valid(self.traceparent)) or trace:
            values["traceparent"] = trace
        return self.packed(values)

    def packed(self, values: dict[str, Any]) -> bytes:
        """Return `values`, which include the job's texts, as msgpack. Raises InvalidText, which names the bad text."""
        try:
            return wire.pack(values)
        except InvalidText:
            texts = [(self.name_of(n), text) for n, text in enumerate(self.texts)]
            for name, text in [*self.queries.items(), *texts]:
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    raise InvalidText(f"{name}: {wire.describe_surrogate(error)}") from error
            raise

    def _asked(self) -> dict[str, Any]:
        asked = self.options.to_map() if self.options is not DEFAULT_OPTIONS else {}
        asked |= {name: getattr(self, name) for name in self.own_names}
        if self.first_text:
            asked["first_text"] = self.first_text
        return asked

    @classmethod
    def of_map(cls, values: Mapping[str, Any], put_s: float = 0.0, **own: Any) -> Self:
        """Return the job with these values from the wire. It was put at `put_s`, in Unix seconds.

        `own` has the fields that are made from several values.
        """
        known = {name: values[name] for name in (*_ENVELOPE, *cls.own_names) if name in values}
        if trace := values.get("traceparent"):
            known["traceparent"] = traceparent.valid(trace)
        ignored = values.keys() - _KNOWN.union(cls.own_names, cls.option_names)
        named = tuple(name[:64] for name in sorted(ignored)[:16])
        job = cls(**known, **own, options=Options.from_map(values), ignored=named)
        if job.timeout_s is None:
            return job
        ends = put_s + (job.timeout_s or -1.0)  # a timeout of 0 expires at once, even if a worker's clock is slow
        object.__setattr__(job, "deadline", ends if job.deadline is None else min(ends, job.deadline))
        return job

    def digest(self) -> str:
        """Return 32 hex digits that depend on everything in the job except its id and trace."""
        return blake2b(replace(self, id="-", traceparent=None).pack(), digest_size=16).hexdigest()

    def split(self, max_texts: int) -> list[Self]:
        """Split the job into jobs that each have a weight of at most `max_texts` texts."""
        if self.num_lane_texts <= max_texts:
            return [self]
        return self.cut(len(self.texts), max_texts, self.lane_sizes())

    def cut(self, max_texts: int, max_size: int, sizes: Iterable[int]) -> list[Self]:
        """Split the job into jobs with new ids that each have at most `max_texts` texts and a total size of `max_size`.

        `sizes` has the size of each text. A text larger than `max_size` becomes a single job.
        """
        if self.is_one_question:
            return [self]
        parts = list(bounded_groups(self.texts, sizes, max_texts, max_size))
        if len(parts) == 1:
            return [self]
        firsts = accumulate(map(len, parts), initial=self.first_text)
        return [replace(self, texts=part, id=new_id(), first_text=n) for part, n in zip(parts, firsts, strict=False)]


#: The fields of a job on the wire that all operations share.
_ENVELOPE = ("id", "texts", "deadline", "timeout_s", "reply_to", "first_text", "fingerprint")

#: The fields on the wire that no operation reports as unknown.
_KNOWN = frozenset(("v", "op", "traceparent", *_ENVELOPE, *OPTION_DEFAULTS))


#: Random ids by process id, because a forked child must not use its parent's ids. They are drawn 256 at a time, because
#: each draw lets other threads run, which costs more than the draw itself.
_drawn_ids: dict[int, deque[str]] = {}


def new_id() -> str:
    """Return 24 random hex digits."""
    ids = _drawn_ids.setdefault(os.getpid(), deque())
    while True:
        try:
            return ids.pop()
        except IndexError:
            digits = secrets.token_hex(256 * 12)
            ids.extend(digits[n : n + 24] for n in range(0, len(digits), 24))


def bounded_groups(items: Iterable[T], sizes: Iterable[int], max_num: int, max_size: int) -> Iterator[list[T]]:
    """Yield groups of at most `max_num` items and a total size of `max_size`; a larger item makes its own group."""
    group: list[T] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if group and (len(group) == max_num or total + size > max_size):
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


def check_lane(lane: str) -> str:
    """Return `lane`. Raises InvalidRequest if no lane has this name."""
    if lane not in LANES:
        raise InvalidRequest(f"lane is {excerpt(lane)}: it takes one of {', '.join(LANES)}")
    return lane


def check_name(field_name: str, value: Any) -> str:
    """Return `value`. Raises InvalidRequest if it must not be part of a Redis key."""
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    raise InvalidRequest(f"{field_name} is {excerpt(value)}: it takes {NAME_RULE}")


def check_deadline(deadline: float, now: float) -> None:
    """Raise InvalidRequest if the deadline is more than `MAX_DEADLINE_S` after `now`; both are in Unix seconds."""
    if deadline > now + MAX_DEADLINE_S:
        raise InvalidRequest(
            f"deadline is {excerpt(deadline)}, and now is {now:.0f}: it takes Unix seconds, at most a year from now"
        )
