"""Records of files of tables, JSON and text, packed by gzip or not. They are read line by line in constant memory."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import chain, dropwhile
from typing import Any, NamedTuple

from shoal.contract.excerpt import excerpt
from shoal.contract.wire import MAX_DEPTH
from shoal.errors import BadDocument
from shoal.records.document import MAX_ROW_BYTES, Record, Records, SourceLabel, refuse_duplicate_columns, too_long
from shoal.records.source_file import SourceFile

#: The ending of a packed file's name.
PACKED_ENDING = ".gz"

#: Longest line that is skipped as a bad row, in characters. A longer line ends the reading of the file.
MAX_LINE_CHARS = 2**28

_ONE_A_LINE = "write one JSON object on the line, as jq -c '.[]' does for a list"

#: Longest whole number in JSON, in characters, including its sign.
MAX_INT_DIGITS = 20

#: Largest number of brackets in a line of JSON, its texts included. An empty list needs over 50 bytes of memory.
MAX_BRACKETS = 100_000

#: Bytes of memory that each line of a row needs beside its characters.
LINE_BYTES = 150

#: Pairs of the number of a row's first line and the row's cells or error. Blank rows are left out.
_Rows = Generator[tuple[int, list[str] | BadDocument], None, None]


class Line(NamedTuple):
    """A line with its number, its text and its error. The text includes the line's end, or is "" if too long."""

    number: int
    text: str
    error: BadDocument | None = None


def read_lines(file: SourceFile, label: SourceLabel) -> Generator[Line, None, None]:
    """Yield the lines of a UTF-8 file. Raises BadDocument if a packed file is damaged."""
    number, is_packed = 0, label.path.lower().endswith(PACKED_ENDING)
    stream: Any = gzip.GzipFile(fileobj=file.stream) if is_packed else file.stream
    # The decoder turns invalid bytes into surrogates, so that a message can name their line.
    with stream, io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="") as text:
        try:
            while line := text.readline(MAX_ROW_BYTES + 1):
                number += 1
                if is_packed:
                    file.count_decompressed(1, len(line), label.at(number))
                # Short ASCII lines without NUL bytes, as most lines are, need no further check.
                is_doubtful = not line.isascii() or len(line) > MAX_ROW_BYTES or "\0" in line
                yield _check_line(text, line, number, label) if is_doubtful else Line(number, line)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadDocument(
                f"{label.at(number + 1)}: not readable as gzip: {error}; the {number:,} lines before it were read: "
                "pack the file again"
            ) from error


def _check_line(text: io.TextIOWrapper, line: str, number: int, label: SourceLabel) -> Line:
    """Return the line, with an error if it is too long, has a NUL byte, or has bytes that are not UTF-8."""
    if len(line) > MAX_ROW_BYTES or len(line.encode(errors="surrogateescape")) > MAX_ROW_BYTES:
        num_chars = len(line)
        while not line.endswith(("\n", "\r")) and (line := text.readline(MAX_ROW_BYTES)):
            num_chars += len(line)
            if num_chars > MAX_LINE_CHARS:
                raise BadDocument(f"{label.at(number)}: it has over {MAX_LINE_CHARS:,} characters: is the file text?")
        return Line(number, "", too_long(label.at(number)))
    if "\0" in line:
        reason = "there is a NUL byte; the file must be UTF-8 text, not UTF-16"
        return Line(number, line, BadDocument(f"{label.at(number)}: {reason}"))
    try:
        line.encode()
    except UnicodeEncodeError as error:
        reason = (
            f"byte 0x{ord(line[error.start]) & 0xFF:02x} is not UTF-8; the file must be UTF-8 text: save it as such, "
            "or convert it with iconv -f ENCODING -t UTF-8; ENCODING is often CP1252, UTF-16, GB18030 or CP932"
        )
        return Line(number, line, BadDocument(f"{label.at(number)}: {reason}"))
    return Line(number, line)


def read_txt(file: SourceFile, label: SourceLabel) -> Records:
    """Yield each line that is not blank as a record with one column, `text`."""
    with closing(read_lines(file, label)) as lines:  # an exception that keeps this frame must not keep the file open
        for number, line, error in lines:
            if error or line.strip():
                yield number, error or {"text": line.rstrip("\r\n")}


def read_jsonl(file: SourceFile, label: SourceLabel) -> Records:
    """Yield the JSON object of each line that is not blank."""
    with closing(read_lines(file, label)) as lines:
        for number, line, error in lines:
            if error or line.strip():
                yield number, error or _json_object(label.at(number), line)


def read_csv(file: SourceFile, label: SourceLabel) -> Records:
    """Yield the rows of a table with cells between commas if the header has one, else semicolons, else tabs."""
    return _table(_rows(file, label), label)


def read_tsv(file: SourceFile, label: SourceLabel) -> Records:
    """Yield the rows of a table with tab-separated cells, in which quotes have no meaning. A cell `\\N` is empty."""

    def rows() -> _Rows:
        with closing(read_lines(file, label)) as lines:
            for number, line, error in lines:
                if error or (line := line.rstrip("\r\n")):
                    yield number, error or ["" if cell == r"\N" else cell for cell in line.split("\t")]

    return _table(rows(), label)


def _table(found: _Rows, label: SourceLabel) -> Records:
    with closing(found) as rows:
        line, header = next(rows, (1, []))
        if isinstance(header, BadDocument):
            raise header
        refuse_duplicate_columns(label.at(line), header)
        if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
            raise BadDocument(
                f"{label.at(line)}: the header is one column, {excerpt(header[0])}; "
                "separate cells by commas in a .csv file, by tabs in a .tsv file"
            )
        for line, cells in rows:
            if isinstance(cells, BadDocument):
                yield line, cells
            elif len(cells) != len(header):
                reason = f"the header has {len(header)} cells, this row {len(cells)}"
                yield line, BadDocument(f"{label.at(line)}: {reason}; quote cells that contain separators")
            else:
                yield line, dict(zip(header, cells, strict=True))


def _rows(file: SourceFile, label: SourceLabel) -> _Rows:
    """Yield the rows of a table whose cells may be quoted. Raises BadDocument for a quote that is not closed."""
    csv.field_size_limit(MAX_ROW_BYTES)  # applies to the whole process, which needs no lower limit
    with closing(read_lines(file, label)) as found:
        after = dropwhile(lambda line: line.text.isspace(), found)
        if (header := next(after, None)) is None:
            return
        delimiter = next((mark for mark in ",;\t" if mark in header.text), ",")
        lines = chain([header], after)
        while True:
            row: list[Line] = []
            cells: list[str] | BadDocument
            try:
                cells = next(csv.reader(_lines_of_row(row, lines, label), strict=True, delimiter=delimiter))
            except StopIteration:
                return
            except csv.Error as error:
                until = f" in lines {row[0].number} to {row[-1].number}" if len(row) > 1 else ""
                cells = BadDocument(
                    f"{label.at(row[0].number)}: {error}{until}; is a quote not closed, or not doubled?"
                )
            if cells:
                errors = [line.error for line in row if line.error]
                yield row[0].number, errors[0] if errors else cells


def _lines_of_row(row: list[Line], lines: Iterator[Line], label: SourceLabel) -> Iterator[str]:
    """Yield the lines that a CSV reader needs for one row, and add them to `row`."""
    num_bytes = 0
    for line in lines:
        row.append(line)
        num_bytes += len(line.text) + LINE_BYTES
        if num_bytes > MAX_ROW_BYTES + LINE_BYTES:
            break
        if line.error and not line.text:
            raise csv.Error
        yield line.text.encode(errors="replace").decode().replace("\0", " ") if line.error else line.text
    if row:
        raise BadDocument(
            f"{label.at(row[0].number)}: a quote is not closed within {MAX_ROW_BYTES:,} bytes: close it, double each "
            "quote that is part of a text, or save the table as .tsv, in which quotes have no meaning"
        )


def _json_object(where: str, line: str) -> Record | BadDocument:
    if (num_brackets := line.count("[") + line.count("{")) > MAX_BRACKETS:
        return BadDocument(f"{where}: it has {num_brackets:,} brackets, over {MAX_BRACKETS:,}: cut it into passages")
    try:
        record = _DECODER.decode(line)
        if "\\u" in line or num_brackets > MAX_DEPTH:
            # This raises an error for half of a surrogate pair, and for a value that is too deep to be written.
            json.dumps(record, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        return BadDocument(f"{where}: not valid JSON: {reason}; {_ONE_A_LINE}")
    if not isinstance(record, dict):
        return BadDocument(f"{where}: {excerpt(record)} is not a JSON object; {_ONE_A_LINE}")
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _int64(digits: str) -> int:
    if len(digits) <= MAX_INT_DIGITS and -(2**63) <= int(digits) < 2**63:
        return int(digits)
    raise ValueError(f"{digits:.30} does not fit in 64 bits; make it a string")


_DECODER = json.JSONDecoder(parse_int=_int64, parse_constant=_refuse_constant)
