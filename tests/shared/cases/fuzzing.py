"""Strategies for fuzz tests, and the number of cases that each test runs.

The test suite always runs the same few cases. `scripts/fuzz` runs SHOAL_FUZZ times as many cases with another seed. It
loads this module as a plugin of pytest, which prints the number of cases.
"""

import os
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import ShoalError

#: Factor of the number of cases; 1 in the test suite.
FACTOR = int(os.environ.get("SHOAL_FUZZ", "1"))

#: Number of cases of each test so far.
RAN: Counter[str] = Counter()

#: Largest number of characters in an error's message, for any input. Replies, logs and answers contain the message.
MAX_MESSAGE = 1_000

#: Odd msgpack: values that end too early, NaN, infinity, extension types and deep nesting.
CLAIMS = (
    *(bytes([marker]) + b"\xff" * 4 for marker in (0xC6, 0xC9, 0xDB, 0xDD, 0xDF)),
    *(
        b"\xdc\xff\xff",
        b"\xde\xff\xff",
        b"\xcb\x7f\xf8" + b"\0" * 6,
        b"\xcb\x7f\xf0" + b"\0" * 6,
        b"\xcf" + b"\xff" * 8,
    ),
    *(b"\xd4\xff\0", b"\xc7\x00\x05", b"\xc1", b"\xa3\xed\xa0\x80", b"\x91" * 600, b"\x91" * 1_010, b"\x81\xa1a" * 400),
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([0, -1, 2**31, 2**63, 2**64 - 1, -(2**63), float("nan"), float("inf"), 1e308])
    | st.floats()
    | TEXTS
    | st.binary(max_size=30)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=4))
)
#: Any value that msgpack can encode.
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.binary(), inner, max_size=4)
)
#: Any value, or lists as deeply nested as msgpack can read.
ODD = VALUES | st.integers(1, 1_015).map(lambda depth: nested(depth))


def nested(depth: int) -> Any:
    """Return lists nested `depth` deep."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def packed(value: Any) -> bytes:
    """Return a value of any depth as msgpack."""
    if isinstance(value, dict):
        parts = [packed(item) for pair in value.items() for item in pair]
        return b"\xdf" + len(value).to_bytes(4, "big") + b"".join(parts)
    if isinstance(value, list) and len(value) == 1:
        depth = 0
        while isinstance(value, list) and len(value) == 1:
            value, depth = value[0], depth + 1
        return b"\x91" * depth + packed(value)
    return bytes(msgpack.packb(value, use_bin_type=True))


@st.composite
def mutated(draw: st.DrawFn, valid: st.SearchStrategy[bytes], claims: tuple[bytes, ...] = CLAIMS) -> bytes:
    """Draw valid bytes, and overwrite, remove or insert some at one to three positions."""
    data = draw(valid)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.sampled_from([start, start, start + 1, start + 4, len(data)]))
        data = data[:start] + draw(st.binary(max_size=5) | st.sampled_from(claims)) + data[end:]
    return data


def changed(fields: dict[str, Any], others: st.SearchStrategy[Any] = ODD) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for the map with some values replaced, removed or added."""
    names = st.sampled_from([*fields, "another"])
    return st.builds(
        lambda gone, new: {k: v for k, v in fields.items() if k not in gone} | new,
        st.sets(names, max_size=2),
        st.dictionaries(names, others, max_size=3),
    )


def fuzz(num_cases: int, **strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that runs a test with `FACTOR` times `num_cases` cases, and counts them."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def counted(*args: Any, **kwargs: Any) -> None:
            RAN[test.__name__.removeprefix("test_")] += 1
            test(*args, **kwargs)

        unhealthy = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
        few = settings(max_examples=num_cases * FACTOR, suppress_health_check=unhealthy)
        return few(given(**strategies)(counted))

    return decorate


def outcome(parse: Callable[..., Any], *args: Any) -> Any:
    """Return the result of `parse`, or the ShoalError that it raises; check that the error's message is short."""
    try:
        return parse(*args)
    except ShoalError as raised:
        error = raised.with_traceback(None)  # because a traceback would keep the parser's files open
    assert 0 < len(str(error)) <= MAX_MESSAGE
    return error


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the number of cases of each test, if this module is a plugin."""
    terminalreporter.section("fuzzed cases")
    for name, count in sorted(RAN.items()):
        terminalreporter.write_line(f"{count:>9,}  {name.replace('_', ' ')}")
    terminalreporter.write_line(f"{sum(RAN.values()):>9,}  in all")
