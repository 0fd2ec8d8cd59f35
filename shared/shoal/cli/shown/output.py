"""The output of commands. Names, messages and texts come out of Redis and over HTTP: none may speak to the terminal."""

from datetime import UTC, datetime

import click

from shoal.process.printable import printable


def echo(line: str, err: bool = False) -> None:
    """Print one line, with escapes for what would begin another one or be obeyed by the terminal."""
    click.echo(printable(line), err=err)


def echo_lines(text: str) -> None:
    """Print each line of a text as `echo` does."""
    for line in text.replace("\r\n", "\n").split("\n"):
        echo(line)


def when(time_s: float) -> str:
    """Return a time in Unix seconds as ISO 8601 has it; as the number where the calendar has no such year."""
    try:
        return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_s:.0f} s"
