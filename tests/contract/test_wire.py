"""The bytes on the wire are msgpack maps of plain values, and nothing is ever unpickled."""

import pickle
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.contract.wire import pack, unpack
from shoal.errors import InvalidText, MalformedJob

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXTS | st.binary()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20)


@given(st.dictionaries(TEXTS, VALUES))
def test_a_map_survives(value: dict[str, Any]) -> None:
    assert unpack(pack(value)) == value


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the 0 bytes are not one msgpack map: they end within a value"),
        (b"\xc1", "not one msgpack map: one of them cannot begin a value"),
        (b"\x91" * 5_000, "not one msgpack map: arrays and maps are nested too deeply"),
        (msgpack.packb({"a": 1})[:-1], "not one msgpack map: they end within a value"),
        (msgpack.packb({"a": 1}) + b"\0", "not one msgpack map: more bytes follow the first value"),
        (msgpack.packb({1: 2}), "not one msgpack map: a key of a map is not a string"),
        (msgpack.packb([1, 2]), "the msgpack value is an array: send a map"),
        (msgpack.packb({"a": msgpack.ExtType(5, b"")}), "extension type 5"),
        (pickle.dumps({"a": 1}), "more bytes follow"),
    ],
)
def test_other_bytes_are_malformed(data: bytes, words: str) -> None:
    with pytest.raises(MalformedJob, match=words):
        unpack(data)


def test_a_string_that_utf8_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidText, match=r"lone surrogate '\\ud83d' at character 1, .* remove or replace it"):
        pack({"texts": ["a\ud83d"]})
    with pytest.raises(InvalidText, match="not UTF-8"):
        unpack(b"\x81\xa1a\xa1\xff")
