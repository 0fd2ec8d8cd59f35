"""Records of text files: .csv and .tsv, .jsonl and .txt, packed or not."""

import csv
import json
import math
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing

from shoal.contract.excerpt import excerpt
from shoal.contract.wire import MAX_DEPTH
from shoal.errors import BadDocument
from shoal.records.files.source_file import SourceFile
from shoal.records.files.text_lines import Line, read_lines
from shoal.records.record import MAX_ROW_BYTES, Place, Record, Records, refuse_duplicate_columns

#: Quotes that are not closed at which a table is not read on: the lines after each are read twice.
MAX_OPEN_QUOTES = 100

#: Most characters of a whole number in JSON, its sign included.
MAX_INT_DIGITS = 20

#: Most lists and objects in a line of JSON, or brackets in its texts. An empty list takes twenty times its two bytes.
MAX_BRACKETS = 100_000

#: Memory that a line of a row takes beside its characters, in bytes.
LINE_BYTES = 150

#: The cells of each row that is not blank, or what is wrong with it, each with the number of its first line.
_Rows = Generator[tuple[int, list[str] | BadDocument], None, None]


def read_txt(file: SourceFile, place: Place) -> Records:
    """Yield each line that is not blank as a record of one column, `text`."""
    with closing(read_lines(file, place)) as lines:
        for number, line, error in lines:
            if error:
                yield number, error
            elif line.strip():
                yield number, {"text": line.rstrip("\r\n")}


def read_jsonl(file: SourceFile, place: Place) -> Records:
    """Yield the JSON object of each line that is not blank."""
    with closing(read_lines(file, place)) as lines:  # an error holds the frames, and so would hold the file open
        for number, line, error in lines:
            if error:
                yield number, error
            elif line.strip():
                yield number, _json_object(place.at(number), line)


def read_csv(file: SourceFile, place: Place) -> Records:
    """Yield the rows of a table of comma-separated cells, which may be quoted."""
    return _table(_rows(file, place), place)


def read_tsv(file: SourceFile, place: Place) -> Records:
    """Yield the rows of a table of tab-separated cells, in which quotes have no meaning."""
    return _table(_rows_without_quotes(file, place), place)


def _table(found: _Rows, place: Place) -> Records:
    with closing(found) as rows:
        line, header = next(rows, (1, []))
        if isinstance(header, BadDocument):
            raise header
        refuse_duplicate_columns(place.at(line), header)
        if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
            raise BadDocument(
                f"{place.at(line)}: the header is one column, {excerpt(header[0])}; "
                "separate cells by commas in a .csv file, by tabs in a .tsv file"
            )
        for line, cells in rows:
            if isinstance(cells, BadDocument):
                yield line, cells
            elif len(cells) != len(header):
                reason = f"the header has {len(header)} cells, this row {len(cells)}"
                yield line, BadDocument(f"{place.at(line)}: {reason}; quote cells that contain separators")
            else:
                yield line, dict(zip(header, cells, strict=True))


def _rows_without_quotes(file: SourceFile, place: Place) -> _Rows:
    with closing(read_lines(file, place)) as lines:
        for number, line, error in lines:
            if error or (line := line.rstrip("\r\n")):
                yield number, error or line.split("\t")


class _OpenQuote(csv.Error):
    """Error of a row that does not end."""


def _rows(file: SourceFile, place: Place) -> _Rows:
    """Yield the rows that may be quoted.

    A quote that is not closed makes a row of all lines after it: but for the first, they are read again.
    """
    csv.field_size_limit(MAX_ROW_BYTES)  # of the whole process, which has no lower limit to keep
    with closing(read_lines(file, place)) as lines:
        again: deque[Line] = deque()
        num_open_quotes = 0
        while True:
            row: list[Line] = []
            found: list[str] | BadDocument
            try:
                found = next(csv.reader(_lines_of_row(row, again, lines), strict=True))
            except StopIteration:
                return
            except csv.Error as error:
                (first, *others), where = row, place.at(row[0].number)
                if isinstance(error, _OpenQuote) and others:
                    num_open_quotes += 1
                    again.extendleft(reversed(others))
                    row, found = [first], BadDocument(f"{where}: a quote is not closed; close it, or double it")
                else:
                    until = f" in lines {first.number} to {others[-1].number}" if others else ""
                    found = BadDocument(f"{where}: {error}{until}; is a quote not closed, or not doubled?")
            if num_open_quotes > MAX_OPEN_QUOTES:
                raise BadDocument(
                    f"{place.at(row[0].number)}: over {MAX_OPEN_QUOTES} quotes are not closed: double those that are "
                    "part of a text, or save the table as .tsv, in which quotes have no meaning"
                )
            if found:
                errors = [line.error for line in row if line.error]
                yield row[0].number, errors[0] if errors else found


def _lines_of_row(row: list[Line], again: deque[Line], lines: Iterator[Line]) -> Iterator[str]:
    """Yield the lines that a reader asks for until its row is whole, and add them to `row`."""
    num_bytes = 0
    while line := again.popleft() if again else next(lines, None):
        row.append(line)
        num_bytes += len(line.text) + LINE_BYTES * (len(row) > 1)
        if num_bytes > MAX_ROW_BYTES:
            raise _OpenQuote
        if line.error and not line.text:
            raise csv.Error
        yield line.text.encode(errors="replace").decode().replace("\0", " ") if line.error else line.text
    if row:
        raise _OpenQuote("the file ends within it")


def _json_object(where: str, line: str) -> Record | BadDocument:
    num_brackets = line.count("[") + line.count("{")
    if num_brackets > MAX_BRACKETS:
        return BadDocument(f"{where}: it has {num_brackets:,} brackets, over {MAX_BRACKETS:,}: cut it into passages")
    try:
        record = _DECODER.decode(line)
        if "\\u" in line or num_brackets > MAX_DEPTH:
            # Half of a surrogate pair, or too deep to be written again.
            json.dumps(record, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        return BadDocument(f"{where}: not valid JSON: {reason}; write one JSON object on the line")
    if not isinstance(record, dict):
        return BadDocument(f"{where}: {excerpt(record)} is not a JSON object; write one JSON object on the line")
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _int64(digits: str) -> int:
    if len(digits) <= MAX_INT_DIGITS and -(2**63) <= int(digits) < 2**63:
        return int(digits)
    raise ValueError(f"{digits:.30} does not fit in 64 bits; make it a string")


def _finite(digits: str) -> float:
    if math.isfinite(number := float(digits)):
        return number
    raise ValueError(f"{digits:.30} is too large for a number of 64 bits; make it a string")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_int=_int64, parse_constant=_refuse_constant)
