"""Replies: vectors, hits and errors survive the wire, and the replies to parts of a job are joined in order."""

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from numpy.typing import NDArray

from shoal.contract.replies import TIMINGS, Reply
from shoal.contract.vectors import SparseVector
from shoal.errors import BY_CODE, Expired, Internal, MalformedJob, NotReady, ShoalError, TextTooLong

VECTORS = nps.arrays(np.float32, nps.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=9))
TIMES = st.dictionaries(st.sampled_from(TIMINGS), st.floats(0, 1e6))


WEIGHTS = st.dictionaries(st.integers(0, 2**31 - 1), st.floats(0, exclude_min=True, allow_infinity=False, width=32))


def sparse_of(weights: dict[int, float]) -> SparseVector:
    ids = sorted(weights)
    return SparseVector(np.array(ids, np.int32), np.array([weights[number] for number in ids], np.float32))


def reply_of(vectors: NDArray[np.float32] | None = None, **fields: Any) -> Reply:
    return Reply("job", vectors=vectors, **fields)


@given(VECTORS, TIMES, st.lists(st.integers(0, 512)))
def test_vectors_survive_the_wire(vectors: NDArray[np.float32], timings: dict[str, float], tokens: list[int]) -> None:
    sent = reply_of(vectors, timings=timings, tokens=tokens, truncated=[n > 9 for n in tokens], model="m")
    got = Reply.unpack(sent.pack())
    assert got.vectors is not None
    assert got.vectors.tobytes() == vectors.tobytes()
    assert got.vectors.shape == vectors.shape
    assert got.vectors.dtype == np.dtype(np.float32)
    assert (got.id, got.status, got.timings, got.tokens) == ("job", "done", timings, tokens)
    assert (got.truncated, got.model, got.hits, got.error) == (sent.truncated, "m", None, None)


def test_every_error_survives_the_wire_and_an_unknown_code_is_still_an_error() -> None:
    classes = ShoalError.__subclasses__()
    assert len({cls.code for cls in classes}) == len(classes) == len(BY_CODE)
    for error in BY_CODE.values():
        assert error.__doc__  # it says when the error occurs
        got = Reply.unpack(Reply.failure("job", error("what, which, why")).pack())
        assert type(got.error) is error
        assert str(got.error) == "what, which, why"
        assert got.status == (error.code if error.code in ("cancelled", "expired") else "failed")
    data = msgpack.packb({"v": 1, "id": "a", "status": "failed", "error": {"code": "new", "message": "m"}})
    assert type(Reply.unpack(data).error) is ShoalError


def test_parts_with_an_error_or_of_two_models_are_not_joined() -> None:
    parts = [reply_of(), Reply.failure("b", TextTooLong("first")), Reply.failure("c", Expired("second"))]
    with pytest.raises(TextTooLong, match="first"):
        Reply.join(parts)
    with pytest.raises(Internal):
        Reply.join([Reply.failure("a", Internal("alone"))])
    part, other = (reply_of(np.ones((1, width), np.float32), model="m") for width in (2, 3))
    with pytest.raises(NotReady, match='"m" of 2 dimensions and "m" of 3 dimensions: send it'):
        Reply.join([part, part, other])
    with pytest.raises(NotReady, match='"m" and "n"'):
        Reply.join([reply_of(hits=[[]], model="m"), reply_of(hits=[[]], model="n")])
    with pytest.raises(MalformedJob, match="lacks a field of the other parts"):
        Reply.join([part, reply_of()])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fingerprint", r'different models, "" \(f\) and "" \(g\): send it again'),
        ("index_version", "of the versions f and g of the index: send it again"),
    ],
)
def test_parts_of_two_fingerprints_or_versions_are_never_joined(name: str, said: str) -> None:
    """A part from an older worker has neither."""
    first, none, second = (Reply("job", hits=[[]], **dict[str, Any]({name: value})) for value in ("f", "", "g"))
    for parts in ([first, none, first], [none, first]):
        assert getattr(Reply.join(parts), name) == "f"
        with pytest.raises(NotReady, match=said):
            Reply.join([*parts, second])


@pytest.mark.parametrize(
    "change",
    [
        {"vectors": {"dtype": "float16", "shape": [1, 1], "data": b"\0\0"}},
        {"vectors": {"dtype": "float32", "shape": [2, 2], "data": b"\0" * 12}},
        {"timings": {"queue_s": float("nan")}},
        {"vectors": 5},
        {"error": "bad"},
        {"error": {"message": "m"}},
    ],
)
def test_a_reply_of_another_shape_is_malformed(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedJob):
        Reply.unpack(msgpack.packb({"v": 1, "id": "a", "status": "done"} | change))


def test_answers_survive_the_wire_and_are_joined_in_order_with_the_longest_times() -> None:
    hits = [[{"id": "a", "score": 0.5}], []]
    assert Reply.join([Reply.unpack(reply_of(hits=[part]).pack()) for part in hits]).hits == hits
    piece = {"id": 5, "text": "a", "special": False, "start": 0, "stop": None}
    parts = [reply_of(pieces=[[piece], []]), reply_of(pieces=[[piece]])]
    assert Reply.join([Reply.unpack(part.pack()) for part in parts]).pieces == [[piece], [], [piece]]
    parts = [reply_of(decoded=["a", ""]), reply_of(decoded=["b"])]
    assert Reply.join([Reply.unpack(part.pack()) for part in parts]).decoded == ["a", "", "b"]
    first = reply_of(timings={"queue_s": 2.0}, characters=[3], cached=1)
    joined = Reply.join([first, reply_of(timings={"queue_s": 1.0, "encode_s": 3.0}, cached=2)])
    assert joined.cached == 3
    assert joined.timings == {"queue_s": 2.0, "tokenize_s": 0.0, "encode_s": 3.0, "search_s": 0.0}
    assert joined.characters == []  # the second part comes from an older version


@given(st.lists(WEIGHTS, min_size=1), nps.arrays(np.float32, (5, 3), elements=st.floats(-1, 1, width=32)))
def test_sparse_vectors_and_multivectors_survive_the_wire_and_are_joined_in_order(
    weights: list[dict[int, float]], rows: NDArray[np.float32]
) -> None:
    sent = reply_of(sparse=[sparse_of(one) for one in weights], multivectors=[rows[:2], rows[2:2], rows[2:]])
    got = Reply.unpack(sent.pack())
    assert got.vectors is None
    joined = Reply.join([got, got])
    assert joined.sparse is not None
    assert joined.multivectors is not None
    for vector, one in zip(joined.sparse, weights * 2, strict=True):
        assert dict(zip(vector.indices.tolist(), vector.values.tolist(), strict=True)) == one
        assert (vector.indices.dtype.name, vector.values.dtype.name) == ("int32", "float32")
    assert [part.tolist() for part in joined.multivectors] == [rows[:2].tolist(), [], rows[2:].tolist()] * 2


def ints(*numbers: int) -> bytes:
    return np.array(numbers, "<i4").tobytes()


def floats(*numbers: float) -> bytes:
    return np.array(numbers, "<f4").tobytes()


PACKED: dict[str, dict[str, Any]] = {
    "sparse": {"lengths": [2, 1], "indices": ints(4, 9, 1), "values": floats(0.5, 1, 2)},
    "multivectors": {"lengths": [1, 1], "dtype": "float32", "shape": [2, 2], "data": floats(1, 2, 3, 4)},
}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("sparse", {"lengths": [4, -1]}),
        ("sparse", {"lengths": [2, True]}),
        ("sparse", {"indices": ints(4, 4, 1)}),
        ("sparse", {"indices": ints(9, 4, 1)}),
        ("sparse", {"indices": ints(4, 9, -1)}),
        ("sparse", {"values": floats(0.5, 1)}),
        ("sparse", {"values": floats(0.5, 1, 0)}),
        ("sparse", {"values": floats(0.5, 1, np.nan)}),
        ("sparse", {"values": floats(0.5, 1, np.inf)}),
        ("multivectors", {"lengths": [1, 2]}),
        ("multivectors", {"shape": [1, 2]}),
        ("multivectors", {"shape": [-2, -2]}),
        ("multivectors", {"shape": [2, 0], "data": b""}),
        ("multivectors", {"data": floats(1, 2, 3, np.inf)}),
        ("multivectors", {"dtype": "float64"}),
    ],
)
def test_sparse_vectors_and_multivectors_of_another_shape_are_malformed(name: str, change: dict[str, Any]) -> None:
    values = {"v": 1, "id": "a", "status": "done"}
    assert Reply.unpack(msgpack.packb(values | {name: PACKED[name]})).error is None
    with pytest.raises(MalformedJob, match=r"the reply|dtype"):
        Reply.unpack(msgpack.packb(values | {name: PACKED[name] | change}))
