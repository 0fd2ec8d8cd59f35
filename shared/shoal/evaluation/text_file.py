"""Lines of the files of a test collection, packed or not, on this machine or at a URL."""

import os.path
from collections.abc import Generator
from contextlib import closing

from shoal.errors import InvalidRequest
from shoal.records.record import Place
from shoal.records.source_file import is_url, open_file, path_of, shown
from shoal.records.source_rules import SourceRules
from shoal.records.text_lines import read_lines

#: Lines that are not blank, each with its number and without its end. Closing it closes the file: an error that a
#: caller raises would hold it open.
Lines = Generator[tuple[int, str], None, None]


def place_of(path: str) -> Place:
    """Return the file as messages name it."""
    return Place(shown(path), "line")


def lines_of(path: str, rules: SourceRules) -> Lines:
    """Yield the lines of a UTF-8 file that are not blank.

    Raises InvalidRequest if there is no such file, BadDocument for a line that is no UTF-8 or too long, and what
    `open_file` raises.
    """
    path = path_of(path)
    if not is_url(path) and not os.path.isfile(path):
        raise InvalidRequest(f"there is no file {path}: give the path of a file, not of a folder")
    with open_file(path, rules) as file, closing(read_lines(file, place_of(path))) as lines:
        for number, text, error in lines:
            if error:
                raise error
            if text.strip():
                yield number, text.rstrip("\r\n")
