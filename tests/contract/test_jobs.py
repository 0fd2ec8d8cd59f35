"""Jobs: a valid job survives the wire, and an error names the field of an invalid one."""

import math
from dataclasses import replace
from itertools import accumulate
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import operations
from shoal.contract.jobs import Job
from shoal.contract.options import CHOICES, LISTED_OUTPUTS, MAX_DIMENSIONS, Options
from shoal.contract.outline import Outline
from shoal.errors import InvalidRequest, MalformedJob, ShoalError, UnsupportedVersion
from shoal.operations import Embed, Search
from shoal.operations.search import MAX_K

NAMES = st.from_regex(r"[A-Za-z0-9_.:-]{1,128}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
DEADLINES = st.none() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(-1e12, 1e12)
ADDRESSES: dict[str, Any] = {"id": NAMES, "deadline": DEADLINES, "reply_to": st.none() | NAMES}
HOW: dict[str, Any] = {
    "pooling": st.sampled_from(CHOICES["pooling"]),
    "prompt_name": st.none() | TEXTS,
    "truncate": st.booleans(),
    "truncation_side": st.sampled_from(CHOICES["truncation_side"]),
}
VECTOR_OPTIONS = st.builds(
    Options, normalize=st.booleans(), dimensions=st.none() | st.integers(1, MAX_DIMENSIONS), **HOW
)
TOKEN_OPTIONS = st.builds(Options, normalize=st.booleans(), output=st.just("tokens"), **HOW)
LISTS = st.lists(st.sampled_from(LISTED_OUTPUTS), min_size=1, unique=True)
LIST_OPTIONS = st.builds(Options, output=LISTS | LISTS.map(tuple), **(HOW | {"pooling": st.none()}))
EMBED_OPTIONS = VECTOR_OPTIONS | TOKEN_OPTIONS | LIST_OPTIONS
EMBEDS = st.builds(Embed, texts=st.lists(TEXTS, min_size=1), options=EMBED_OPTIONS, **ADDRESSES)
SEARCHES = st.builds(
    Search,
    texts=st.lists(TEXTS.filter(str.strip), min_size=1),
    options=st.builds(Options, **HOW),
    k=st.integers(1, MAX_K),
    index=TEXTS,
    **ADDRESSES,
)


@given(EMBEDS | SEARCHES, st.integers(1, 5))
def test_a_job_survives_the_wire_and_its_parts_ask_the_same_together(job: Job, size: int) -> None:
    assert operations.unpack(job.pack()) == job
    outline = Outline.read(job.pack())
    assert (outline.id, outline.reply_to) == (job.id, job.reply_to)
    parts = job.split(size)
    assert [text for part in parts for text in part.texts] == job.texts
    assert all(1 <= len(part.texts) <= size for part in parts)
    firsts = accumulate((len(part.texts) for part in parts[:-1]), initial=0)
    assert [part.first_text for part in parts] == list(firsts)
    names = [part.name_of(number) for part in parts for number in range(len(part.texts))]
    assert names == list(map(job.name_of, range(len(job.texts))))
    assert len({part.id for part in parts}) == len(parts)
    assert all(replace(part, id=job.id, texts=job.texts, first_text=job.first_text) == job for part in parts)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"texts": "storm"}, "texts is a string: it takes a list of strings"),
        ({"texts": []}, "the list of texts is empty"),
        ({"texts": ["a", 5]}, "text 1 is a number: it must be a string"),
        ({"id": "a b"}, 'id is "a b": it takes 1 to 128 letters'),
        ({"reply_to": "a{b}"}, r'reply_to is "a{b}"'),
        ({"deadline": "soon"}, 'deadline is "soon": it takes Unix seconds'),
        ({"deadline": msgpack.Timestamp(1)}, "deadline is a timestamp: it takes Unix seconds"),
        ({"timeout_s": -1}, "timeout_s is -1: it takes a number from 0 to 31,536,000"),
        ({"deadline": True}, "deadline is true"),
        ({"deadline": math.nan}, "deadline is nan"),
        ({"deadline": 10**30}, "deadline is 1000"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Embed(**({"texts": ["a"]} | fields))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"normalize": 1}, "normalize is 1: it takes true or false"),
        ({"truncate": None}, "truncate is null: it takes true or false"),
        ({"pooling": "last"}, 'pooling is "last": it takes one of null, mean, max, cls'),
        ({"truncation_side": "top"}, 'truncation_side is "top": it takes one of right, left'),
        ({"prompt_name": 3}, "prompt_name is 3: it takes the name of a prompt"),
        ({"dimensions": 0}, "dimensions is 0: it takes a whole number from 1"),
        ({"dimensions": True}, "dimensions is true"),
        ({"dimensions": 8, "output": "tokens"}, "dimensions does not go with output 'tokens'"),
        ({"chunk_tokens": 0}, "chunk_tokens is 0: it takes a whole number from 1 to 1,000,000"),
        ({"chunk_tokens": 9, "chunk_overlap": -1}, "chunk_overlap is -1: it takes a whole number from 0"),
        ({"chunk_tokens": 9, "chunk_overlap": 5}, "chunk_overlap is 5: it takes at most half of chunk_tokens, 4"),
        ({"chunk_overlap": 5}, "chunk_overlap is 5, without chunk_tokens: set both"),
        ({"output": "chunks"}, "output 'chunks' takes chunk_tokens"),
        ({"chunk_tokens": 9, "output": "tokens"}, "chunk_tokens does not go with output 'tokens'"),
        ({"chunk_tokens": 9, "truncation_side": "left"}, "chunk_tokens does not go with truncation_side 'left'"),
        ({"output": "dense"}, 'output is "dense": it takes one of vector, tokens, chunks, sparse, multivector'),
        ({"output": []}, r"output is \[\]: a list takes one or more of vector, sparse, multivector, each once"),
        ({"output": ["vector", "tokens"]}, r'output is \["vector", "tokens"\]: a list takes one or more of vector'),
        ({"output": ["sparse", "sparse"]}, r'output is \["sparse", "sparse"\]: a list takes'),
        ({"output": [["sparse"]]}, r'output is \[\["sparse"\]\]: a list takes'),
        ({"output": ["multivector"], "dimensions": 8}, "dimensions does not go with output 'multivector'"),
        ({"output": ["multivector"], "pooling": "cls"}, "pooling does not go with output 'multivector'"),
        ({"output": ["vector", "sparse"], "chunk_tokens": 9}, "chunk_tokens does not go with output 'sparse'"),
    ],
)
def test_a_wrong_option_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Options(**values)
    with pytest.raises(InvalidRequest, match=message):
        Options.from_map(values)


def test_outputs_are_a_tuple_that_begins_with_the_output_of_the_vectors() -> None:
    assert Options().outputs == ("vector",)
    assert Options(output="sparse").outputs == ("sparse",)
    assert Options(output=["multivector", "sparse", "vector"]).outputs == ("vector", "sparse", "multivector")
    assert Options(output=["sparse", "vector"], dimensions=3).outputs == ("vector", "sparse")
    outputs = [Options(), *(Options(output=output) for output in ("sparse", "multivector", ["vector"]))]
    assert [options.is_cacheable for options in outputs] == [True, False, False, False]
    assert [Embed(["a"], options).texts_per_job for options in outputs] == [32, 32, 4, 32]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"k": 0}, "k is 0: it takes a whole number from 1 to 1,000"),
        ({"k": 1_001}, "k is 1001"),
        ({"index": 5}, "index is 5: it takes the name of an index"),
        ({"texts": ["a", " \n"]}, r"queries\[1\] is empty"),
        ({"options": Options(normalize=False)}, "do not go with a search"),
        ({"options": Options(output="tokens")}, "do not go with a search"),
        ({"options": Options(dimensions=3)}, "do not go with a search"),
        ({"options": Options(chunk_tokens=9)}, "chunk_tokens does not go with a search"),
    ],
)
def test_a_wrong_field_of_a_search_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Search(**({"texts": ["a"]} | fields))


def test_a_chunk_counts_as_a_text_in_the_lane_and_when_a_list_is_split() -> None:
    texts = ["", "a" * 400, "b" * 4_000, "c" * 100, "d" * 100]
    plain, job = Embed(texts), Embed(texts, Options(chunk_tokens=10, chunk_overlap=5))
    assert (plain.num_lane_texts, job.num_lane_texts) == (5, 1 + 20 + 200 + 5 + 5)
    parts = job.split(32)
    assert [len(part.texts) for part in parts] == [len(part.texts) for part in job.split(21)] == [2, 1, 2]
    assert [text for part in parts for text in part.texts] == texts
    assert job.split(231) == [job]
    assert Embed(["x" * 10**7], Options(chunk_tokens=1)).num_lane_texts == 999_999
    texts = ["", "a" * 79, "a" * 80, "👍" * 25 + "a" * 20]  # a character beyond ASCII counts as a token
    assert list(map(Options(chunk_tokens=15, chunk_overlap=5).num_chunks, texts)) == [1, 1, 2, 3]
    assert Options().num_chunks(texts[-1]) == 1


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"op": "dance"}, InvalidRequest, 'op is "dance": it takes one of embed, search'),
        ({"op": ["embed"]}, InvalidRequest, r'op is \["embed"\]: it takes one of'),
        ({"id": ...}, MalformedJob, "no field 'id'"),
        ({"op": ...}, MalformedJob, "no field 'op'"),
        ({"texts": ...}, MalformedJob, "no field 'texts'"),
        ({"v": 2}, UnsupportedVersion, "v 2: this worker speaks version 1"),
        ({"v": "1"}, UnsupportedVersion, 'v "1": this worker'),
        ({"v": ...}, UnsupportedVersion, "v null: this worker"),
    ],
)
def test_bytes_that_are_no_job_are_refused(values: dict[str, Any], error: type[ShoalError], message: str) -> None:
    given = {"v": 1, "id": "a", "op": "embed", "texts": ["a"]} | values
    with pytest.raises(error, match=message):
        operations.unpack(msgpack.packb({name: value for name, value in given.items() if value is not ...}))


@pytest.mark.parametrize(("timeout_s", "deadline"), [(0, 99.0), (5, 105.0), (500, 300.0)])
def test_the_earlier_of_a_timeout_after_the_put_and_a_deadline_counts(timeout_s: float, deadline: float) -> None:
    values = {"v": 1, "id": "a", "op": "embed", "texts": ["a"], "timeout_s": timeout_s, "deadline": 300.0}
    assert operations.unpack(msgpack.packb(values), 100.0).deadline == deadline


def test_the_outline_of_a_job_is_read_without_the_rest() -> None:
    values = {"id": "mine", "op": "embed", "texts": ["storm"] * 70_000, "reply_to": "me", 5: [[{}]] * 9}
    outline = Outline.read(msgpack.packb(values))
    assert (outline.id, outline.op, outline.num_texts, outline.reply_to) == ("mine", "embed", 70_000, "me")
    cut = Outline.read(msgpack.packb(values)[:100])
    assert (cut.id, cut.op, cut.num_texts, cut.reply_to) == ("mine", "embed", 70_000, None)
    odd = Outline.read(msgpack.packb({"id": "a b", "op": "x" * 1_000_000, "texts": "storm", "reply_to": 5}))
    assert (odd.id, odd.op, odd.num_texts, odd.reply_to) == (None, None, None, None)
    assert Outline.read(msgpack.packb({"op": "dance"})).op is None
    fields: list[dict[Any, Any]] = [{5: "x"}, {"texts": b"\xff"}, {"x": msgpack.ExtType(1, b"")}]
    for more in (*fields, {b"\xff": 1, "deep": [[[{"x": {}}]]]}):
        outline = Outline.read(msgpack.packb({**more, "id": "mine", "reply_to": "me", "id2": "y"}))
        assert (outline.id, outline.reply_to) == ("mine", "me")
    data = msgpack.packb({"id": "mine", "x": "y"})
    assert [Outline.read(damaged).id for damaged in (data[:-1], data + b"\xc0", data[:8])] == ["mine", "mine", None]
