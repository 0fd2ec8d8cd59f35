"""Jobs: what a producer asks of a worker."""

import os
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any, Self

from shoal import wire
from shoal.errors import InvalidRequest, InvalidText, MalformedJob, UnsupportedVersion
from shoal.excerpt import excerpt, kind
from shoal.keys import NAME, NAME_RULE

#: Lanes in the order in which a worker fills its batches from them.
LANES = ("interactive", "bulk")

#: Operations a worker knows.
OPERATIONS = ("embed", "search")

#: Values that an option with a closed set may take. None means: as the model says.
CHOICES: dict[str, tuple[str | None, ...]] = {
    "pooling": (None, "mean", "max", "cls"),
    "output": ("vector", "tokens"),
    "truncation_side": ("right", "left"),
}

#: Most hits a query may ask for.
MAX_K = 1_000

#: Most dimensions that can be asked for: more than any model has.
MAX_DIMENSIONS = 100_000


@dataclass(frozen=True, slots=True)
class Options:
    """How the texts of a job are embedded."""

    normalize: bool = True
    pooling: str | None = None
    output: str = "vector"
    dimensions: int | None = None
    prompt_name: str | None = None
    truncate: bool = True
    truncation_side: str = "right"

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                words = ", ".join("null" if word is None else word for word in allowed)
                raise InvalidRequest(f"{name} is {excerpt(getattr(self, name))}: it takes one of {words}")
        for name in ("normalize", "truncate"):
            _expect(name, getattr(self, name), bool, "true or false")
        if self.prompt_name is not None:
            _expect("prompt_name", self.prompt_name, str, "a string")
        if self.dimensions is not None:
            _expect_int("dimensions", self.dimensions, 1, MAX_DIMENSIONS)
            if self.output == "tokens":
                raise InvalidRequest("dimensions does not go with output 'tokens': drop one of the two")

    @classmethod
    def from_map(cls, values: Mapping[str, Any]) -> Self:
        """Options out of the map's fields of those names; the rest keep their defaults."""
        return cls(**{name: values[name] for name in OPTION_NAMES if name in values})


_DEFAULTS = {f.name: f.default for f in fields(Options)}

#: Names of the option fields, the same on the wire, in HTTP bodies and in Python.
OPTION_NAMES = tuple(_DEFAULTS)


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work: a few texts to embed, or a few queries to embed and search for.

    `deadline` is in Unix seconds. Without `reply_to` the reply goes to the job's own result key and the job has a
    record with its status; with it, the reply goes to that address and there is no record.
    """

    op: str
    texts: list[str]
    options: Options = field(default_factory=Options)
    id: str = field(default_factory=lambda: new_id())
    k: int = 5
    index: str = "default"
    deadline: float | None = None
    reply_to: str | None = None

    def __post_init__(self) -> None:
        if self.op not in OPERATIONS:
            raise InvalidRequest(f"op is {excerpt(self.op)}: it takes one of {', '.join(OPERATIONS)}")
        check_name("id", self.id)
        if self.reply_to is not None:
            check_name("reply_to", self.reply_to)
        _check_texts(self.texts)
        if self.deadline is not None:
            _check_deadline(self.deadline)
        if self.op == "search":
            self._check_search()

    def _check_search(self) -> None:
        _expect_int("k", self.k, 1, MAX_K)
        _expect("index", self.index, str, "a string")
        for n, query in enumerate(self.texts):
            if not query.strip():
                raise InvalidRequest(f"query {n} is empty: there is nothing to search for")
        if self.options.output != "vector" or self.options.dimensions is not None or not self.options.normalize:
            raise InvalidRequest("output, dimensions and normalize do not go with a search: leave them out")

    def pack(self, reply_to: str | None = None) -> bytes:
        """The job as it travels (docs/protocol.md), with `reply_to` for its reply address if one is given.

        Raises InvalidText for a text that UTF-8 cannot hold.
        """
        values: dict[str, Any] = {"v": wire.VERSION, "id": self.id, "op": self.op, "texts": self.texts}
        values |= {k: value for k, default in _DEFAULTS.items() if (value := getattr(self.options, k)) != default}
        if self.op == "search":
            values |= {"k": self.k, "index": self.index}
        if self.deadline is not None:
            values["deadline"] = self.deadline
        if reply_to := reply_to or self.reply_to:
            values["reply_to"] = reply_to
        try:
            return wire.pack(values)
        except InvalidText:
            _check_encodable(self.texts)
            raise

    def digest(self) -> str:
        """32 hex digits that stand for what is asked: the same for two jobs that differ in their ids alone."""
        return blake2b(replace(self, id="-").pack(), digest_size=16).hexdigest()

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """The job in `data`; unknown fields are ignored.

        Raises MalformedJob, UnsupportedVersion or InvalidRequest, naming the field.
        """
        values = wire.unpack(data)
        if (version := values.get("v")) != wire.VERSION:
            raise UnsupportedVersion(f"the job has v {excerpt(version)}: this worker speaks version {wire.VERSION}")
        for name in ("id", "op", "texts"):
            if name not in values:
                raise MalformedJob(f"the job has no field {name!r}: id, op and texts are required")
        known = {name: values[name] for name in JOB_NAMES if name in values}
        return cls(**known, options=Options.from_map(values))

    def split(self, max_texts: int) -> "list[Job]":
        """Jobs of at most `max_texts` texts that together ask the same, each with an id of its own."""
        if len(self.texts) <= max_texts:
            return [self]
        parts = [self.texts[n : n + max_texts] for n in range(0, len(self.texts), max_texts)]
        return [replace(self, texts=part, id=new_id()) for part in parts]


JOB_NAMES = tuple(f.name for f in fields(Job) if f.name != "options")


#: Random ids that are ready for use, by process: one that was forked must not use those of the other.
_ids: dict[int, deque[str]] = {}


def new_id() -> str:
    """24 random hex digits.

    Drawn from the system 256 at a time: each draw lets other threads run first, which costs more than the draw itself.
    """
    ids = _ids.setdefault(os.getpid(), deque())
    while True:
        try:
            return ids.pop()
        except IndexError:
            drawn = secrets.token_hex(256 * 12)
            ids.extend(drawn[n : n + 24] for n in range(0, len(drawn), 24))


def address_of(data: bytes) -> tuple[str | None, str | None]:
    """The id and reply address in the bytes of a job that `Job.unpack` refused, as far as they can be read."""
    try:
        values = wire.unpack(data, unicode_errors="replace")
        job_id = check_name("id", values.get("id"))
        reply_to = values.get("reply_to")
        return job_id, None if reply_to is None else check_name("reply_to", reply_to)
    except (MalformedJob, InvalidRequest):
        return None, None


def check_name(field_name: str, value: Any) -> str:
    """`value` if it may be part of a Redis key: 1 to 128 letters, digits, `-`, `_`, `.` or `:`."""
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    raise InvalidRequest(f"{field_name} is {excerpt(value)}: it takes {NAME_RULE}")


def _check_texts(texts: Any) -> None:
    if not isinstance(texts, list):
        raise InvalidRequest(f"texts is {kind(texts)}: it takes a list of strings")
    if not texts:
        raise InvalidRequest("the list of texts is empty: send at least one")
    for n, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequest(f"text {n} is {kind(text)}: it must be a string")


def _check_encodable(texts: list[str]) -> None:
    for n, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidText(f"text {n}: {wire.describe_surrogate(error)}") from error


def _check_deadline(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:
        raise InvalidRequest(f"deadline is {excerpt(value)}: it takes Unix seconds")


def _expect(name: str, value: Any, kind: type, words: str) -> None:
    if not isinstance(value, kind):
        raise InvalidRequest(f"{name} is {excerpt(value)}: it takes {words}")


def _expect_int(name: str, value: Any, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise InvalidRequest(f"{name} is {excerpt(value)}: it takes a whole number from {lowest} to {highest:,}")
