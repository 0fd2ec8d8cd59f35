"""Progress: nothing for a short step, then lines that say how much is done and how long it still takes."""

import io
import os
import termios

import pytest

from shoal.progress import Progress


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    """A clock at 0."""
    return Clock()


def lines(progress: Progress, clock: Clock, stream: io.StringIO, *steps: tuple[float, int]) -> list[str]:
    """Return the lines that are written when so many more are done at these times."""
    for now_s, count in steps:
        clock.now_s = now_s
        progress.advance(count)
        progress.tick()
    return stream.getvalue().splitlines()


def test_a_short_step_writes_nothing(clock: Clock) -> None:
    stream = io.StringIO()
    assert lines(Progress("reading", stream=stream, clock=clock), clock, stream, (0.0, 0), (0.9, 0)) == []


@pytest.mark.parametrize(("columns", "shown"), [(20, 19), (0, 46)])
def test_a_line_is_as_wide_as_the_terminal_at_most(columns: int, shown: int) -> None:
    label = "x" * 40
    reader, writer = os.openpty()
    termios.tcsetwinsize(writer, (24, columns))
    with open(reader, "rb", buffering=0) as screen, open(writer, "w") as stream:
        progress = Progress(label, stream=stream, clock=iter([0.0, 5.0, 5.0]).__next__)
        progress.tick()
        assert screen.read(1_000).decode() == "\r\033[K" + f"{label} … 5 s"[:shown]


def test_a_step_of_unknown_length_says_how_long_it_has_taken(clock: Clock) -> None:
    stream = io.StringIO()
    progress = Progress("waiting for Redis", stream=stream, clock=clock)
    assert lines(progress, clock, stream, (1.0, 0), (2.0, 0), (5.9, 0), (6.0, 0)) == [
        "waiting for Redis … 1 s",
        "waiting for Redis … 6 s",
    ]


def test_a_step_of_known_length_says_how_fast_it_is_and_how_long_it_still_takes(clock: Clock) -> None:
    stream = io.StringIO()
    progress = Progress("embedding", 24_000, unit=" documents", stream=stream, clock=clock)
    assert lines(progress, clock, stream, (1.0, 0), (10.0, 2_000), (20.0, 10_000)) == [
        "embedding: 0 of 24,000 documents, 1 s so far",
        "embedding: 2,000 of 24,000 documents, 200 documents a second, 1 min 50 s left",
        "embedding: 12,000 of 24,000 documents, 600 documents a second, 20 s left",
    ]


def test_a_terminal_has_one_line_that_is_gone_at_the_end(clock: Clock) -> None:
    stream = Terminal()
    progress = Progress("embedding", 4, stream=stream, clock=clock)
    lines(progress, clock, stream, (1.0, 1), (2.0, 1))
    progress.finish()
    assert stream.getvalue().split("\r\033[K") == [
        "",
        "embedding: 1 of 4, 1 a second, 3 s left",
        "embedding: 2 of 4, 1 a second, 2 s left",
        "",
    ]


def test_a_step_that_does_not_return_is_shown_by_a_thread() -> None:
    stream = io.StringIO()
    with Progress("opening", stream=stream, clock=iter([0.0, *[2.0] * 1_000]).__next__) as progress:
        while not stream.getvalue():
            progress.ended.wait(0.01)
    assert stream.getvalue() == "opening … 2 s\n"
