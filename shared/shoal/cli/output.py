"""The output of commands. Texts from Redis and HTTP are escaped, so that none of them can control the terminal."""

from datetime import UTC, datetime

import click

from shoal.process.printable import printable


def echo(line: str, err: bool = False) -> None:
    """Print one line. Characters that would end the line or control the terminal are escaped."""
    click.echo(printable(line), err=err)


def echo_lines(text: str) -> None:
    """Print each line of a text with `echo`."""
    for line in text.replace("\r\n", "\n").split("\n"):
        echo(line)


def when(time_s: float) -> str:
    """Return a time in Unix seconds in ISO 8601, or as the number if the calendar has no such year."""
    try:
        return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_s:.0f} s"
