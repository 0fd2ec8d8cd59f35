"""The output of commands. Texts from Redis and HTTP are escaped, so that none of them can control the terminal."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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


class OutputFile(click.Path):
    """The path of a file that a command writes at its end, or `-`. A command that fails leaves the file unchanged."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, allow_dash=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. End the command with a message if the file cannot be written."""
        path = Path(str(super().convert(value, param, ctx)))
        if not path.exists() and not os.access(path.parent, os.W_OK | os.X_OK):
            self.fail(f"{path.parent} is no folder that can be written to", param, ctx)
        return path
