"""Changes of indexes: a packed change is read back unchanged, and the log in Redis keeps order, sums and limits."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from blocking import ChangeLog
from changes import change, documents, unit_vectors
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from queues import Queue

from shoal.changes import change_log as module
from shoal.changes.change import BYTES_OF_A_VALUE, MAX_CHANGE_BYTES, MAX_CHANGE_IDS, MAX_CHANGES, Change, size_of
from shoal.changes.change_log import START, LoggedChange
from shoal.contract.vectors import SparseVector, pack_sparse
from shoal.errors import (
    IndexMismatch,
    InvalidRequest,
    InvalidText,
    MalformedJob,
    ShoalError,
    TooLarge,
    TooManyChanges,
    Unavailable,
)
from shoal.records.document import RESERVED_NAMES, Document

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9).filter(str.strip)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
NAMES = WORDS.filter(lambda name: name not in RESERVED_NAMES)
DOCUMENTS = st.builds(Document, WORDS, WORDS, st.dictionaries(NAMES, VALUES, max_size=3))


SPARSE = st.dictionaries(st.integers(0, 2**31 - 1), st.floats(0.125, 9, width=32), max_size=4).map(
    lambda weights: SparseVector(
        np.array(sorted(weights), np.int32), np.array([weights[token] for token in sorted(weights)], np.float32)
    )
)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """Draw a change that concerns at least one id."""
    added = draw(st.lists(DOCUMENTS, max_size=4))
    deleted = draw(st.lists(WORDS, min_size=not added, max_size=4))
    vectors = draw(nps.arrays(np.float32, (len(added), 3), elements=st.floats(-0.5, 0.5, width=32)))
    sparse = tuple(draw(SPARSE) for _ in added) if deleted else ()
    if len(sparse) > 2:
        vectors = vectors[:, :0]  # the index has words alone
    digest, made_at = draw(st.text("0123456789abcdef")), draw(st.floats(0, 1e12))
    return Change(tuple(added), vectors, tuple(deleted), digest, made_at, sparse)


@pytest.fixture
def log(queue: Queue) -> ChangeLog:
    """Return the logs of the test's own pool."""
    return ChangeLog(queue.broker, queue.keys)


def same(one: Change, other: Change | MalformedJob) -> bool:
    """Return True if both are the same change."""
    return (
        isinstance(other, Change)
        and (one.documents, one.deleted, one.digest, one.made_at)
        == (other.documents, other.deleted, other.digest, other.made_at)
        and (one.vectors.tobytes() == other.vectors.tobytes())
        and [[part.tolist() for part in vector] for vector in one.sparse]
        == [[part.tolist() for part in vector] for vector in other.sparse]
    )


def positions_of(log: ChangeLog, position: str = START) -> list[str]:
    """Return the positions of the changes after a position."""
    return [entry.position for entry in log.since("news", position).entries]


@given(changes())
def test_a_change_is_read_as_it_was_packed(one: Change) -> None:
    assert same(one, Change.unpack(one.pack()))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(ShoalError):
        Change.unpack(data)


FIELDS: dict[str, Any] = msgpack.unpackb(change(["1"], ["2"]).pack())

#: Fields of a change that no client writes.
WRONG: list[dict[str, Any]] = [
    {"documents": {}},
    {"documents": ["storm"]},
    {"documents": []},
    {"documents": [{"id": "1"}]},
    {"documents": [{"id": "1", "text": " "}]},
    {"documents": [{"id": 1, "text": "storm"}]},
    {"documents": [{"id": "", "text": "storm"}]},
    {"documents": [{"id": "1", "text": "storm", "score": 2.0}]},
    {"documents": [{"id": "1", "text": "storm", "year": float("nan")}]},
    {"documents": [{"id": "1", "text": "storm", "year": b"1"}]},
    {"documents": [{"id": "1", "text": "storm", "deep": json.loads("[" * 70 + "]" * 70)}]},
    {"documents": [], "deleted": [], "vectors": b""},
    {"deleted": [2]},
    {"deleted": "2"},
    {"deleted": [" "]},
    {"vectors": "storm"},
    {"vectors": b"123"},
    {"vectors": np.full(8, np.nan, np.float32).tobytes()},
    {"vectors": np.full(8, 3e38, np.float32).tobytes()},
    {"vectors": np.ones(8, np.float32).tobytes()},
    {"digest": None},
    {"made_at": -1.0},
    {"made_at": float("nan")},
    {"sparse": []},
    {"sparse": {"lengths": [1], "indices": b"1234", "values": b"12"}},
    {"sparse": pack_sparse([SparseVector(np.zeros(1, np.int32), np.ones(1, np.float32))] * 7)},
]

#: Fields of a change that would take much memory.
LARGE: list[dict[str, Any]] = [
    {"deleted": ["1"] * (MAX_CHANGE_IDS + 1)},
    {"deleted": ["1" * MAX_CHANGE_BYTES]},
    {"documents": [{"id": "1", "text": "storm", "many": [[]] * 5_000}]},
]


def test_a_change_of_another_shape_is_refused() -> None:
    Change.unpack(msgpack.packb(FIELDS))
    for wrong in WRONG:
        with pytest.raises(MalformedJob):
            Change.unpack(msgpack.packb(FIELDS | wrong))
    for large in LARGE:
        with pytest.raises(TooLarge, match=r"split it$"):
            Change.unpack(msgpack.packb(FIELDS | large))
    for name in FIELDS:
        with pytest.raises(MalformedJob, match=f"^{name} is missing"):
            Change.unpack(msgpack.packb({other: value for other, value in FIELDS.items() if other != name}))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (change(), InvalidRequest, "it takes at least one"),
        (change(deleted=map(str, range(MAX_CHANGE_IDS + 1))), TooLarge, "split it"),
        (change(deleted=["\ud800"]), InvalidText, "lone surrogate"),
        (replace(change(["1"]), documents=documents(["1"], {"x": 2**64})), InvalidRequest, "cannot be sent"),
        (replace(change(["1"]), documents=documents(["1"], {"x": float("inf")})), InvalidRequest, "JSON cannot hold"),
        (replace(change(["1"]), vectors=2 * unit_vectors(1)), InvalidRequest, "not normalised"),
    ],
)
def test_a_change_that_could_not_be_read_is_never_packed(wrong: Change, error: type[ShoalError], message: str) -> None:
    with pytest.raises(error, match=message):
        wrong.pack()


def fill(log: ChangeLog, num: int = MAX_CHANGES // MAX_CHANGE_IDS) -> list[str]:
    """Append the largest number of changes that may be in no build; return their positions."""
    ids = list(map(str, range(MAX_CHANGE_IDS)))
    return [log.append("news", change(deleted=ids)) for _ in range(num)]


def append(log: ChangeLog, num: int) -> list[str]:
    """Append changes of one document each; return their positions."""
    return [log.append("news", change([str(n)])) for n in range(num)]


def check_full(log: ChangeLog) -> None:
    with pytest.raises(TooManyChanges, match=r"index news has 10,000 changes .* that no build has folded in"):
        log.append("news", change(deleted=["1"]))


def test_a_log_has_the_changes_in_their_order_numbered_without_gaps(log: ChangeLog) -> None:
    sent = [change(["1", "2"]), change(deleted=["1"]), change(["3"], ["2"])]
    positions = [log.append("news", one) for one in sent]
    other = log.append("other", change(["1"]))
    found = list(log.since("news", START).entries)
    assert [entry.position for entry in found] == positions
    assert all(same(*pair) for pair in zip(sent, (entry.change for entry in found), strict=True))
    assert [entry.num for entry in found] == [2, 3, 5]
    sizes = np.cumsum([size_of(one, one.pack()) for one in sent])
    assert [entry.size for entry in found] == sizes.tolist()
    assert positions_of(log, positions[1]) == positions[2:]
    assert log.positions() == {"news": positions[-1], "other": other}
    numbers, digits = zip(*(position.split("-") for position in (*positions, other)), strict=True)
    assert numbers == ("1", "2", "3", "1")
    assert {len(each) for each in digits} == {18}
    assert len({each[:9] for each in digits}) == 2
    assert len({each[9:] for each in digits}) == 4
    with pytest.raises(InvalidRequest, match="is no name of an index"):
        log.append("a b", change(["1"]))


def test_a_long_log_is_read_in_several_steps(log: ChangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = append(log, 10)
    monkeypatch.setattr(module, "MAX_READ_ENTRIES", 3)
    assert positions_of(log) == positions
    monkeypatch.setattr(module, "MAX_READ_BYTES", 2 * len(change(["0"]).pack()))
    assert positions_of(log, positions[2]) == positions[3:]


# Limits


def test_the_changes_that_no_build_has_are_limited_in_number(log: ChangeLog) -> None:
    positions = fill(log)
    check_full(log)
    assert log.positions() == {"news": positions[-1]}
    log.append("other", change(deleted=["1"]))
    log.fold("news", positions[0], [START])
    positions += fill(log, 1)
    check_full(log)
    assert positions_of(log) == positions
    log.fold("news", positions[-1], [positions[0]])
    log.append("news", change(deleted=["1"]))
    log.fold("news", positions[1], [positions[1]])  # as if after a rollback
    log.append("news", change(deleted=["1"] * 999))
    check_full(log)


def test_the_changes_that_no_build_has_are_limited_in_bytes(log: ChangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value of a byte counts as the memory and time that it takes."""
    many: list[Any] = [[]] * 300
    one = replace(change(["1"]), documents=documents(["1"], {"many": many, "more": {"a": many}}))
    assert one.num_values == (1 + 4) + (4 + 4) + 5 * 300 + 4 + (1 + 4) + 5 * 300 + 4
    positions = [log.append("news", one)]
    (entry,) = log.since("news", START).entries
    assert entry.size == size_of(one, one.pack()) == BYTES_OF_A_VALUE * one.num_values > 10 * len(one.pack())
    monkeypatch.setattr(module, "MAX_CHANGES_BYTES", 2 * entry.size)
    positions.append(log.append("news", one))
    with pytest.raises(TooManyChanges):
        log.append("news", change(["2"]))
    log.fold("news", positions[-1], [START])
    log.append("news", change(["2"]))


@pytest.mark.parametrize("is_of_another_log", [True, False])
def test_only_a_build_of_the_same_log_makes_room_in_it(log: ChangeLog, queue: Queue, is_of_another_log: bool) -> None:
    others = append(log, 3)
    queue.redis.delete(queue.keys.changes("news"), queue.keys.changed)
    positions = fill(log)
    if not is_of_another_log:
        queue.redis.delete(queue.keys.changes("news"))
        check_full(log)
    folded = others if is_of_another_log else positions
    log.fold("news", folded[-1], folded[-3:])
    if is_of_another_log:
        check_full(log)
    else:
        append(log, 2)


# Changes that are removed or lost


def test_changes_that_no_version_needs_are_removed(log: ChangeLog) -> None:
    positions = append(log, 6)
    log.fold("news", positions[4], [positions[4], positions[2]])
    assert positions_of(log, positions[2]) == positions[3:]
    log.fold("news", positions[2], [positions[2]])  # as if after a rollback
    assert [entry.num for entry in log.since("news", positions[2]).entries] == [4, 5, 6]
    assert log.positions() == {"news": positions[-1]}
    log.fold("news", positions[5], [positions[5]])
    assert positions_of(log, positions[5]) == []
    positions.append(log.append("news", change(["6"])))
    assert [(entry.position, entry.num) for entry in log.since("news", positions[5]).entries] == [(positions[6], 7)]


def test_removed_changes_are_reported_to_a_reader_that_needs_them(log: ChangeLog) -> None:
    positions = [START, *append(log, 4)]
    log.fold("news", positions[3], [positions[3]])
    tail = log.since("news", positions[3])
    first = next(tail.entries)
    assert (tail.has_position, first.position, type(first.change)) == (True, positions[4], Change)
    tail = log.since("news", positions[2])
    first = next(tail.entries)
    assert (tail.has_position, first.position, type(first.change)) == (False, positions[3], MalformedJob)
    assert f"does not have the changes after {START} up to {positions[3]}" in str(first.change)
    assert [entry.position for entry in tail.entries] == positions[4:]


def test_a_log_reports_that_entries_are_gone(log: ChangeLog, queue: Queue) -> None:
    positions = append(log, 4)
    queue.redis.xdel(queue.keys.changes("news"), positions[2])
    found = list(log.since("news", START).entries)
    assert [entry.position for entry in found] == positions
    assert [type(entry.change) for entry in found] == [Change, Change, MalformedJob, Change]
    queue.redis.delete(queue.keys.changes("news"))
    assert log.since("news", positions[3]).has_position
    (lost,) = log.since("news", positions[1]).entries
    assert (lost.position, type(lost.change)) == (positions[3], MalformedJob)
    positions.append(log.append("news", change(["3"])))
    assert positions_of(log, positions[3]) == positions[4:]


def test_a_position_that_redis_has_lost_is_not_given_to_another_change(log: ChangeLog, queue: Queue) -> None:
    """After a failover, the server may lack the last change while a client goes on."""
    kept = log.append("news", change(["kept"]))
    saved = {key: queue.redis.dump(key) for key in (queue.keys.changes("news"), queue.keys.changed)}
    lost = append(log, 2)
    for key, dumped in saved.items():
        queue.redis.restore(key, 0, dumped, replace=True)
    assert not log.since("news", lost[0]).has_position
    again = append(log, 2)
    for position in lost:
        assert log.since("news", position).has_position is False
        assert positions_of(log, position) == [kept, *again]
    log.fold("news", lost[0], [lost[0]])  # a version has the lost changes
    assert positions_of(log, lost[0]) == [kept, *again]


def test_a_position_of_another_log_is_before_all_changes(log: ChangeLog, queue: Queue) -> None:
    first = append(log, 3)
    queue.redis.delete(queue.keys.changes("news"), queue.keys.changed)
    second = append(log, 2)
    for position in first:
        assert positions_of(log, position) == second
        log.fold("news", position, [second[0], position])
        assert positions_of(log) == second
    log.fold("news", second[0], [second[0]])
    assert isinstance(next(log.since("news", first[2]).entries).change, MalformedJob)


# Values that other programs write


def test_a_line_that_is_lost_or_damaged_is_made_anew(log: ChangeLog, queue: Queue) -> None:
    first = log.append("news", change(["1", "2"]))
    damages: list[Callable[[], object]] = [
        lambda: queue.redis.delete(queue.keys.changed),
        lambda: queue.redis.hset(queue.keys.changed, "news", "x"),
    ]
    for damage in damages:
        damage()
        assert log.positions() == {}
        log.append("news", change(["3"]))
    assert [entry.num for entry in log.since("news", first).entries] == [3, 4]
    queue.redis.delete(queue.keys.changed)
    log.fold("news", START, [START])
    assert log.positions() == {"news": positions_of(log)[-1]}
    for state in ("", "1-", "1-1-1", "9" * 30 + "-1", "1-\n1 0 0 0 0"):
        queue.redis.hset(queue.keys.changed, mapping={"news": state, b"\xff": "1-1 0 0 0 0"})
        assert log.positions() == {"\ufffd": "1-1"}


@pytest.mark.parametrize(
    "fields",
    [
        {"x": "y"},
        {"change": b"x" * (MAX_CHANGE_BYTES + 1)},
        {"change": change(["1"]).pack()[:-1], "num": "-1", "size": "9" * 400},
        {"change": msgpack.packb({"documents": 1}), "num": "\u0663", "size": b"\xff"},
    ],
)
def test_an_entry_that_no_client_wrote_is_reported_by_itself(
    log: ChangeLog, queue: Queue, fields: dict[str, Any]
) -> None:
    first = log.append("news", change(["1"]))
    entry_id = queue.redis.xadd(queue.keys.changes("news"), fields)
    second = log.append("news", change(["2"]))
    sound, wrong, other = log.since("news", START).entries
    assert (sound.position, other.position, other.num) == (first, second, 2)
    assert (wrong.position, wrong.num, wrong.size) == (first, 0, 0)
    assert isinstance(wrong.change, MalformedJob)
    with pytest.raises(MalformedJob):
        wrong.change_for("d", 8)
    queue.redis.xdel(queue.keys.changes("news"), entry_id)
    third = log.append("news", change(["3"]))
    found = [entry.position for entry in log.since("news", START).entries if isinstance(entry.change, Change)]
    assert found == [first, second, third]
    assert positions_of(log, second) == [third]


def test_keys_of_another_type_are_reported(log: ChangeLog, queue: Queue) -> None:
    queue.redis.set(queue.keys.changes("news"), "x")
    with pytest.raises(MalformedJob, match="holds something else"):
        list(log.since("news", START).entries)
    for use in (lambda: log.append("news", change(["1"])), lambda: log.fold("news", START, [START])):
        with pytest.raises(Unavailable, match="another program wrote a key"):
            use()
    assert log.positions() == {}


def test_a_change_of_another_model_is_refused() -> None:
    entry = LoggedChange("1-1", 1, 1, change(["1"], ["2"]))
    assert entry.change_for("d", 8) is entry.change
    with pytest.raises(IndexMismatch, match="another model"):
        entry.change_for("e", 8)
    with pytest.raises(IndexMismatch, match="8 numbers, not 9"):
        entry.change_for("d", 9)
    deletion = LoggedChange("1-1", 1, 1, change(deleted=["2"]))
    assert deletion.change_for("e", 9) is deletion.change
