"""Texts from outside on a terminal: on one line, without control characters, and JSON stays JSON."""

import json
import re

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.main import main
from shoal.cli.output import when
from shoal.process.printable import printable

#: Characters that control a terminal, begin a line, or change the direction of a text.
OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@given(st.text(st.characters(exclude_categories=())))
def test_no_text_controls_the_terminal(text: str) -> None:
    shown = printable(text)
    assert not OBEYED.search(shown)
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown
    shown.encode()


@given(st.text())
def test_json_stays_json_of_the_same_value(text: str) -> None:
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text


def test_escapes_are_readable_and_words_of_any_language_stay_as_they_are() -> None:
    for text in ("Überschwemmung", "می‌خواهم", "洪水　東京", "👩‍🚒", "a\\nb"):
        assert printable(text) == text
    assert not OBEYED.search(printable("".join(map(chr, range(0xE000)))))
    assert printable("a\x1b[2J\n\t\u202e\x9b") == r"a\u001b[2J\n\t\u202e\u009b"


def test_the_error_with_which_a_command_ends_is_one_line() -> None:
    done = CliRunner().invoke(main, ["index", "info", "./no\x1b[2J\nsuch"])
    assert done.exit_code == 1
    assert "\x1b" not in done.output
    assert len(done.output.splitlines()) == 1


@pytest.mark.parametrize(("time_s", "shown"), [(0.0, "1970-01-01T00:00:00+00:00"), (1e16, "10000000000000000 s")])
def test_a_time_outside_the_calendar_is_shown_as_a_number(time_s: float, shown: str) -> None:
    assert when(time_s) == shown
