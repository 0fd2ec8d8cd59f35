"""Records of text files: .csv and .tsv, .jsonl and .txt, packed with gzip or not."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from shoal.errors import BadDocument
from shoal.excerpt import excerpt
from shoal.records.record import Record, Records, location, open_source, refuse_duplicate_columns


def read_txt(path: Path) -> Records:
    """Yield each line that is not blank as a record of one column, `text`."""
    with closing(_lines(path)) as lines:
        yield from ((number, {"text": line.rstrip("\r\n")}) for number, line in lines if line.strip())


def read_jsonl(path: Path) -> Records:
    """Yield the JSON object of each line that is not blank."""
    with closing(_lines(path)) as lines:  # an error holds the frames, and so would hold the file open
        yield from ((number, _json_object(location(path, number), line)) for number, line in lines if line.strip())


def read_csv(path: Path) -> Records:
    """Yield the rows of a table of comma-separated cells, which may be quoted."""
    return _table(path)


def read_tsv(path: Path) -> Records:
    """Yield the rows of a table of tab-separated cells, in which quotes have no meaning."""
    return _table(path, delimiter="\t", quoting=csv.QUOTE_NONE)


def _table(path: Path, **dialect: Any) -> Records:
    with closing(_rows(path, **dialect)) as rows:
        line, header = next(rows, (1, []))
        refuse_duplicate_columns(location(path, line), header)
        _refuse_another_separator(location(path, line), header)
        for line, cells in rows:
            if len(cells) != len(header):
                raise BadDocument(
                    f"{location(path, line)}: the header has {len(header)} cells, this row {len(cells)}; "
                    "quote cells that contain separators"
                )
            yield line, dict(zip(header, cells, strict=True))


def _refuse_another_separator(where: str, header: list[str]) -> None:
    """Raise BadDocument for a header that is one cell with semicolons or tabs in it, as from another separator."""
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise BadDocument(
            f"{where}: the header is one column, {excerpt(header[0])}; "
            "separate cells by commas in a .csv file, by tabs in a .tsv file"
        )


def _rows(path: Path, **dialect: Any) -> Generator[tuple[int, list[str]], None, None]:
    """Yield the rows of cells that are not blank, each with the number of its first line."""
    start = 1
    with closing(_lines(path)) as lines:
        reader = csv.reader((line for _, line in lines), strict=True, **dialect)
        try:
            for cells in reader:
                if cells:
                    yield start, cells
                start = reader.line_num + 1
        except csv.Error as error:
            raise BadDocument(f"{location(path, start)}: {error}; is a quote not closed, or not doubled?") from error


def _json_object(where: str, line: str) -> Record:
    try:
        record = json.loads(line, parse_int=_int64, parse_constant=_refuse_constant)
        json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise BadDocument(f"{where}: not valid JSON: {reason}; write one JSON object on the line") from error
    if not isinstance(record, dict):
        raise BadDocument(f"{where}: {excerpt(record)} is not a JSON object; write one JSON object on the line")
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _int64(digits: str) -> int:
    if -(2**63) <= int(digits) < 2**63:
        return int(digits)
    raise ValueError(f"{digits:.30} does not fit in 64 bits; make it a string")


def _lines(path: Path) -> Generator[tuple[int, str], None, None]:
    """Yield the lines of a UTF-8 file with their numbers."""
    number = 0
    # Invalid bytes come through as surrogates, so that the number of their line is known.
    with open_source(path) as file, io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="") as text:
        try:
            for number, line in enumerate(text, 1):
                _refuse_bytes(path, number, line)
                yield number, line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadDocument(f"{location(path, number + 1)}: not readable as gzip: {error}; pack it again") from error


def _refuse_bytes(path: Path, number: int, line: str) -> None:
    """Raise BadDocument for a line with a NUL byte or with bytes that are not UTF-8."""
    if "\0" in line:
        raise BadDocument(f"{location(path, number)}: there is a NUL byte; the file must be UTF-8 text")
    try:
        line.encode()
    except UnicodeEncodeError as error:
        byte = ord(line[error.start]) & 0xFF
        raise BadDocument(
            f"{location(path, number)}: byte 0x{byte:02x} is not UTF-8; the file must be UTF-8 text: "
            "save it as such, or convert it with iconv -f ENCODING -t UTF-8"
        ) from None
