"""Lines of text files, packed or not: numbered, and skipped while they are read where they are too long."""

import gzip
import io
import sys
import zlib
from collections.abc import Generator
from typing import Any, NamedTuple

from shoal.errors import BadDocument, MissingExtra
from shoal.process.extra import install_command
from shoal.records.files.source_file import SourceFile, name_of
from shoal.records.record import MAX_ROW_BYTES, Place, too_long

#: The endings of the names of packed files. Python has zstd from 3.14 on; before, it comes from the extra `zstd`.
PACKED_ENDINGS = (".gz", ".zst")

#: The first bytes of UTF-16, as they come through the decoder.
_UTF_16 = ("\udcff\udcfe", "\udcfe\udcff")

#: Most characters of a line that is skipped. A file with a longer one is not read on.
MAX_LINE_CHARS = 2**28

#: Most characters of blank lines one after another. While a reader skips them, its caller can neither report nor stop.
MAX_BLANK_CHARS = 2**20

#: The encoding of all text files, with or without a byte order mark.
ENCODING = "utf-8-sig"

_CONVERT = "save it as such, or convert it with iconv -f ENCODING -t UTF-8"


class Line(NamedTuple):
    """A line with its end, its number, and what is wrong with it; the text of one that is too long is left out."""

    number: int
    text: str
    error: BadDocument | None = None


def read_lines(file: SourceFile, place: Place) -> Generator[Line, None, None]:
    """Yield the lines of a UTF-8 file.

    Raises BadDocument if a packed file is damaged, for UTF-16, and for over `MAX_BLANK_CHARS` of blank lines, and
    MissingExtra.
    """
    number, num_blank, name = 0, 0, name_of(place.path).lower()
    packed, faults = _unpacked(file.stream, name)
    # Invalid bytes come through as surrogates, so that the number of their line is known.
    with packed, io.TextIOWrapper(packed, ENCODING, "surrogateescape", newline="") as text:
        try:
            while line := text.readline(MAX_ROW_BYTES + 1):
                number += 1
                if packed is not file.stream:
                    file.count_unpacked(1, len(line), place.at(number))
                if number == 1 and line.startswith(_UTF_16):
                    raise BadDocument(f"{place.at(1)}: the file is UTF-16; it must be UTF-8 text: {_CONVERT}")
                num_blank = num_blank + len(line) if line.isspace() else 0
                if num_blank > MAX_BLANK_CHARS:
                    blank = f"over {MAX_BLANK_CHARS:,} characters of blank lines end here"
                    raise BadDocument(f"{place.at(number)}: {blank}: is the file text?")
                yield _checked(text, line, number, place) if _is_doubtful(line) else Line(number, line)
        except faults as error:
            kind = name.rpartition(".")[2].replace("gz", "gzip").replace("zst", "zstd")
            raise BadDocument(
                f"{place.at(number + 1)}: not readable as {kind}: {error}; the {number:,} lines before it were "
                "read: pack the file again"
            ) from error


def _unpacked(stream: "io.BufferedReader[Any]", name: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return a stream that unpacks a file as the ending of its name says, and what it raises for damaged data."""
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=stream), (EOFError, gzip.BadGzipFile, zlib.error)
    if not name.endswith(".zst"):
        return stream, ()
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        try:
            from backports import zstd
        except ImportError as error:
            raise MissingExtra(f"reading .zst needs backports.zstd; run: {install_command('zstd')}") from error
    return zstd.ZstdFile(stream), (EOFError, zstd.ZstdError)


def _is_doubtful(line: str) -> bool:
    """Return True if a line must be looked at: most are short, of ASCII and without NUL bytes."""
    return not line.isascii() or len(line) > MAX_ROW_BYTES or "\0" in line


def _checked(text: io.TextIOWrapper, line: str, number: int, place: Place) -> Line:
    """Return the line, with an error if it is too long, has a NUL byte or has bytes that are not UTF-8."""
    if len(line) > MAX_ROW_BYTES or len(line.encode(errors="surrogateescape")) > MAX_ROW_BYTES:
        num_chars = len(line)
        while not line.endswith(("\n", "\r")) and (line := text.readline(MAX_ROW_BYTES)):
            num_chars += len(line)
            if num_chars > MAX_LINE_CHARS:
                raise BadDocument(f"{place.at(number)}: it has over {MAX_LINE_CHARS:,} characters: is the file text?")
        return Line(number, "", too_long(place.at(number)))
    if "\0" in line:
        reason = "there is a NUL byte; the file must be UTF-8 text"
        return Line(number, line, BadDocument(f"{place.at(number)}: {reason}"))
    try:
        line.encode()
    except UnicodeEncodeError as error:
        reason = f"byte 0x{ord(line[error.start]) & 0xFF:02x} is not UTF-8; the file must be UTF-8 text: {_CONVERT}"
        return Line(number, line, BadDocument(f"{place.at(number)}: {reason}"))
    return Line(number, line)
