"""Jobs: the texts that a producer wants embedded or searched for, and how."""

import os
import secrets
from collections import deque
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Literal, Self, get_args

from shoal import traceparent, wire
from shoal.checks import check_range, check_string, check_type
from shoal.errors import InvalidRequest, InvalidText, MalformedJob, UnsupportedVersion
from shoal.excerpt import excerpt, kind
from shoal.keys import NAME, NAME_RULE
from shoal.map_options import WHOLE_MAP, MapOptions
from shoal.options import OPTION_DEFAULTS, RERANK_OPTIONS, Options
from shoal.search_options import PLAIN, SearchOptions

# The words of the contract, as types: the HTTP schema is made from the same ones.
Lane = Literal["interactive", "bulk"]
Operation = Literal["embed", "search", "rerank", "tokenize", "decode", "map"]

#: All lanes, the one with the highest priority first.
LANES: tuple[str, ...] = get_args(Lane)

#: All operations.
OPERATIONS: tuple[str, ...] = get_args(Operation)

#: The operations that need the model's tokenizer alone.
TOKENIZER_OPERATIONS = ("tokenize", "decode")

#: The operations that read an index.
INDEX_OPERATIONS = ("search", "map")

#: Most hits a query may ask for.
MAX_K = 1_000

#: Longest time from now to a deadline, in seconds: a year. One that is later is in another unit, such as milliseconds.
MAX_DEADLINE_S = 365 * 86_400

#: Most values in the arrays and maps of a job, in unknown fields too: more than the texts of any job that the script
#: accepts.
MAX_VALUES = 2**20

#: A further pass over all documents, for one list of hits, counts as this many texts in a lane. So a worker takes few
#: such lists at a time, and other jobs do not wait long.
TEXTS_PER_PASS = 4

#: So many hits of a list count as a text in a lane: reading them, with snippets or explained, takes a worker longer.
HITS_PER_TEXT = 100

#: The points of a map count as this many texts in a lane: reading them takes a worker about as long as so many short
#: texts.
TEXTS_PER_MAP = 16

#: Most texts that a job counts as in its lane, as many as the scripts count.
MAX_LANE_TEXTS = 999_999

#: Largest number of a text in a list that is split into jobs: more than any list has.
MAX_TEXT_NUMBER = 2**53


@dataclass(frozen=True, slots=True)
class Job:
    """A few texts to embed, to score for a query or to tokenize, queries to search for, or ids of tokens to decode.

    `search` has the options of a search, which needs no texts if it is for vectors or documents, and `map` those of a
    map, which has none. A rerank has a
    `query`; `raw_scores` asks for the reranker's numbers as they are, else each is between 0 and 1. A text to decode is
    ids in decimal, with spaces between them. `special_tokens` is about special tokens, such as `[CLS]`: to tokenize,
    add them; to decode, keep them.

    `first_text` is the number of the first text in a longer list that the job is a part of, for messages alone.
    `traceparent` is the trace that the job belongs to, for log lines and spans alone. `deadline` is in Unix seconds by
    Redis's clock. The reply goes to the reply address `reply_to`; a job without one has a record with its status, and
    its reply goes to a result key of its own. Raises InvalidRequest for a field that is not right.
    """

    op: str
    texts: list[str]
    options: Options = field(default_factory=Options)
    id: str = field(default_factory=lambda: new_id())
    k: int = 5
    index: str = "default"
    deadline: float | None = None
    reply_to: str | None = None
    special_tokens: bool = True
    query: str | None = None
    raw_scores: bool = False
    search: SearchOptions = PLAIN
    map: MapOptions = WHOLE_MAP
    traceparent: str | None = None
    first_text: int = 0

    def __post_init__(self) -> None:
        if self.op not in OPERATIONS:
            raise InvalidRequest(f"op is {excerpt(self.op)}: it takes one of {', '.join(OPERATIONS)}")
        check_name("id", self.id)
        if self.reply_to is not None:
            check_name("reply_to", self.reply_to)
        _check_texts(self.texts, may_be_empty=self.search.num_given > 0 or self.op == "map")
        if self.deadline is not None:
            _check_deadline(self.deadline)
        check_range("first_text", self.first_text, 0, MAX_TEXT_NUMBER)
        if self.op == "search":
            self._check_search()
        elif self.search is not PLAIN and self.search != PLAIN:
            raise InvalidRequest(f"{next(iter(self.search.to_map()))} does not go with op {self.op}: leave it out")
        if self.op == "map":
            self._check_map()
        elif self.map is not WHOLE_MAP and self.map != WHOLE_MAP:
            raise InvalidRequest(f"{next(iter(self.map.to_map()))} does not go with op {self.op}: leave it out")
        if self.op == "rerank":
            self._check_rerank()
        if self.op in TOKENIZER_OPERATIONS:
            check_type("special_tokens", self.special_tokens, bool, "true or false")

    def _check_search(self) -> None:
        check_range("k", self.k, 1, MAX_K)
        check_string("index", self.index, "the name of an index")
        for n, text in enumerate(self.texts):
            if not text.strip():
                raise InvalidRequest(f"{self.name_of(n)} is empty: there is nothing to search for")
        if self.options.output != "vector" or self.options.dimensions is not None or not self.options.normalize:
            raise InvalidRequest("output, dimensions and normalize do not go with a search: leave them out")
        if self.options.chunk_tokens is not None:
            raise InvalidRequest("chunk_tokens does not go with a search: leave it out")
        self._check_hits()

    def _check_map(self) -> None:
        check_string("index", self.index, "the name of an index")
        if self.texts:
            raise InvalidRequest(f"texts has {len(self.texts):,}: a map takes none, send an empty list")
        if self.options != Options():
            raise InvalidRequest("options of texts do not go with a map, which has none: leave them out")

    def _check_hits(self) -> None:
        num_negative = self.search.num_negative
        if num_negative > len(self.texts) or self.search.num_given + len(self.texts) == num_negative:
            raise InvalidRequest(
                f"num_negative is {num_negative:,} of {len(self.texts):,} texts: add what hits are to be like"
            )
        if self.search.cursor is not None and self.num_lists > 1:
            raise InvalidRequest(f"cursor goes with one list of hits, and {self.num_lists:,} are asked for: send one")
        if rerank := self.search.rerank:
            if rerank["top_n"] < self.k:
                raise InvalidRequest(
                    f"rerank.top_n is {rerank['top_n']:,}, and k is {self.k:,}: raise it to at least that"
                )
            if self.search.num_given and "query" not in rerank:
                raise InvalidRequest("rerank.query is missing: hits of vectors and documents are scored for a text")

    def _check_rerank(self) -> None:
        check_type("query", self.query, str, "a string")
        check_type("raw_scores", self.raw_scores, bool, "true or false")
        if not str(self.query).strip():
            raise InvalidRequest("query is empty: it takes the text that the texts are scored for")
        for name, default in OPTION_DEFAULTS.items():
            if name not in RERANK_OPTIONS and getattr(self.options, name) != default:
                raise InvalidRequest(f"{name} does not go with a rerank: leave it out")

    def name_of(self, number: int) -> str:
        """Return the name of a text by its number in the job, for messages: its place in the list that callers send."""
        if self.op != "search":
            return f"text {self.first_text + number}"
        num_queries = max(0, len(self.texts) - self.search.num_negative)
        is_negative = number >= num_queries
        return f"negative[{number - num_queries}]" if is_negative else f"queries[{self.first_text + number}]"

    def pack(self, reply_to: str | None = None, trace: str | None = None) -> bytes:
        """Return the job as msgpack (docs/protocol.md), with `reply_to` as its reply address if one is given.

        It belongs to the trace `trace` if it names none itself.

        Raises InvalidText for a text that UTF-8 cannot hold.
        """
        values: dict[str, Any] = {"v": wire.VERSION, "id": self.id, "op": self.op, "texts": self.texts}
        values |= {k: value for k, default in OPTION_DEFAULTS.items() if (value := getattr(self.options, k)) != default}
        if self.op == "search":
            values |= {"k": self.k, "index": self.index, **self.search.to_map()}
        if self.op == "map":
            values |= {"index": self.index, **self.map.to_map()}
        if self.op == "rerank":
            values |= {"query": self.query, "raw_scores": self.raw_scores}
        if self.op in TOKENIZER_OPERATIONS:
            values["special_tokens"] = self.special_tokens
        if self.deadline is not None:
            values["deadline"] = self.deadline
        if reply_to := reply_to or self.reply_to:
            values["reply_to"] = reply_to
        if trace := traceparent.valid(self.traceparent) or trace:
            values["traceparent"] = trace
        if self.first_text:
            values["first_text"] = self.first_text
        try:
            return wire.pack(values)
        except InvalidText:
            self._check_encodable()
            raise

    def _check_encodable(self) -> None:
        """Raise InvalidText for a text that UTF-8 cannot hold, which it names."""
        named = [(self.name_of(n), text) for n, text in enumerate(self.texts)]
        for name, text in [("query", (self.op == "rerank" and self.query) or ""), *named]:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidText(f"{name}: {wire.describe_surrogate(error)}") from error

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Return the job in `data`; unknown fields are ignored.

        Raises MalformedJob, UnsupportedVersion, InvalidRequest for a field, which it names, or TooLarge for more than
        `MAX_VALUES` values, unknown fields included.
        """
        values = wire.unpack(data, MAX_VALUES)
        if (version := values.get("v")) != wire.VERSION:
            raise UnsupportedVersion(f"the job has v {excerpt(version)}: this worker speaks version {wire.VERSION}")
        for name in ("id", "op", "texts"):
            if name not in values:
                raise MalformedJob(f"the job has no field {name!r}: id, op and texts are required")
        known = {name: values[name] for name in JOB_NAMES if name in values}
        known["traceparent"] = traceparent.valid(values.get("traceparent"))
        search = SearchOptions.from_map(values) if values["op"] == "search" else PLAIN
        map_ = MapOptions.from_map(values) if values["op"] == "map" else WHOLE_MAP
        return cls(**known, options=Options.from_map(values), search=search, map=map_)

    def digest(self) -> str:
        """Return 32 hex digits, the same for two jobs that differ in their ids and traces alone."""
        return blake2b(replace(self, id="-", traceparent=None).pack(), digest_size=16).hexdigest()

    @property
    def num_lane_texts(self) -> int:
        """Return how many texts the job counts as in its lane.

        A chunk, a vector, a hit to rerank, and a hundred other hits of a list count as one, and each further pass over
        the documents for a list as several, as the points of a map do.
        """
        if self.op == "map":
            return TEXTS_PER_MAP if self.map.map_rows is None else 1
        if self.options.chunk_tokens is None:
            num_asked = max(1, len(self.texts) + self.search.num_given)
            return min(MAX_LANE_TEXTS, num_asked + self._num_more)
        return min(MAX_LANE_TEXTS, sum(map(self.options.num_chunks, self.texts)))

    @property
    def num_lists(self) -> int:
        """The number of lists of hits that a search asks for."""
        return 1 if self.search.fuse else len(self.texts) - self.search.num_negative + self.search.num_given

    @property
    def hits_per_list(self) -> int:
        """The most hits that a list of a search may have."""
        return self.k * (self.search.group_size if self.search.group_by != "" else 1)

    @property
    def num_pairs(self) -> int:
        """The most hits of a search that the reranker scores, each with a query."""
        if self.search.rerank is None:
            return 0
        return int(self.num_lists * self.search.rerank["top_n"] * (self.hits_per_list // self.k))

    @property
    def _num_more(self) -> int:
        """The number that the lists of a search count as in its lane, beside texts and vectors.

        The passes of the first list do not count: single searches of all kinds share a batch.
        """
        num_more = TEXTS_PER_PASS * (self.num_lists - 1) * (self.search.num_passes - 1)
        return self.num_pairs + num_more + self.num_lists * self._texts_of_hits

    @property
    def _texts_of_hits(self) -> int:
        """The number that the hits of a list count as."""
        return self.hits_per_list // HITS_PER_TEXT if self.op == "search" else 0

    def split(self, max_texts: int) -> "list[Job]":
        """Return jobs of at most `max_texts` texts, as a lane counts them, that together ask the same.

        Each has a new id. A text stays whole.
        """
        if self.num_lane_texts <= max_texts or self.search.is_one_question:
            return [self]
        parts: list[list[str]] = []
        room = 0
        more_per_text = self.num_pairs // len(self.texts) + self._texts_of_hits
        more_per_text += TEXTS_PER_PASS * (self.search.num_passes - 1)
        for text in self.texts:
            num_texts = self.options.num_chunks(text) + more_per_text
            if num_texts > room:
                parts.append([])
                room = max_texts
            parts[-1].append(text)
            room -= num_texts
        firsts = accumulate(map(len, parts), initial=self.first_text)
        return [replace(self, texts=part, id=new_id(), first_text=n) for part, n in zip(parts, firsts, strict=False)]


#: The fields of a job on the wire, without the options.
JOB_NAMES = tuple(f.name for f in fields(Job) if f.name not in ("options", "search", "map"))


#: Random ids drawn in advance, by process: a fork must not use the ids of its parent.
_drawn_ids: dict[int, deque[str]] = {}


def new_id() -> str:
    """Return 24 random hex digits.

    They are drawn 256 at a time: each draw lets other threads run first, which costs more than the draw itself.
    """
    ids = _drawn_ids.setdefault(os.getpid(), deque())
    while True:
        try:
            return ids.pop()
        except IndexError:
            digits = secrets.token_hex(256 * 12)
            ids.extend(digits[n : n + 24] for n in range(0, len(digits), 24))


def check_name(field_name: str, value: Any) -> str:
    """Return `value`; raise InvalidRequest unless it may be part of a Redis key."""
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    raise InvalidRequest(f"{field_name} is {excerpt(value)}: it takes {NAME_RULE}")


def check_deadline(deadline: float, now: float) -> None:
    """Raise InvalidRequest if the deadline is further from `now` than any that is meant; both in Unix seconds."""
    if deadline > now + MAX_DEADLINE_S:
        raise InvalidRequest(
            f"deadline is {excerpt(deadline)}, and now is {now:.0f}: it takes Unix seconds, at most a year from now"
        )


def _check_texts(texts: Any, may_be_empty: bool) -> None:
    if not isinstance(texts, list):
        raise InvalidRequest(f"texts is {kind(texts)}: it takes a list of strings")
    if not texts and not may_be_empty:
        raise InvalidRequest("the list of texts is empty: send at least one")
    for n, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequest(f"text {n} is {kind(text)}: it must be a string")


def _check_deadline(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:
        raise InvalidRequest(f"deadline is {excerpt(value)}: it takes Unix seconds")
