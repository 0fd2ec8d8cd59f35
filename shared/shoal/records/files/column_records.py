"""Records of files of columns: .parquet, and Arrow's .arrow and .feather. Needs pyarrow, from the `parquet` extra."""

from collections.abc import Callable, Iterator
from typing import Any

from shoal.errors import BadDocument, FileError, MissingExtra
from shoal.process.extra import install_command
from shoal.process.memory_limit import limited_memory
from shoal.records.files.arrow_values import check_types, num_bytes
from shoal.records.files.source_file import BLOCK_BYTES, SourceFile
from shoal.records.record import MAX_ROW_BYTES, Place, Record, Records, refuse_duplicate_columns, too_long

#: Most rows of a .parquet file that are taken at a time, and about the most bytes of them.
BATCH_ROWS, BATCH_BYTES = 1_024, 16 * 2**20

#: The first bytes of an Arrow file, which has its list of batches at its end; an Arrow stream has none.
_ARROW_FILE = b"ARROW1"

#: The types of .parquet's byte arrays that may be read as the numbers of repeated values.
_REPEATABLE = {"STRING", "JSON", "ENUM", "NONE"}

#: Most memory that reading takes, in bytes. A small file may hold a page or a record batch of any size.
MAX_MEMORY_BYTES = 2**30

#: The names of the columns of a file, and its record batches; in place of a row that is invalid, its error.
_Table = tuple[list[str], Iterator[Any]]

#: Rows in sequence, with an error in place of each that is bad.
_Piece = list[Record | BadDocument]


def read_parquet(file: SourceFile, place: Place) -> Records:
    """Yield the rows, in memory for a page of each column and the rows that are taken at a time.

    Raises BadDocument, or MissingExtra without pyarrow.
    """
    return _rows(_parquet, file, place, "parquet")


def read_arrow(file: SourceFile, place: Place) -> Records:
    """Yield the rows of an Arrow file or stream, in memory for one of its record batches.

    Raises BadDocument, or MissingExtra without pyarrow.
    """
    return _rows(_arrow, file, place, "Arrow")


def _rows(table: Callable[[SourceFile, Place], _Table], file: SourceFile, place: Place, kind: str) -> Records:
    try:
        import pyarrow
        import pyarrow.compute  # which cannot be loaded when the memory is nearly used up
    except ImportError as error:
        raise MissingExtra(f"reading {kind} needs pyarrow; run: {install_command('parquet')}") from error
    pyarrow.allocate_buffer(1)  # at first the pool sets a GiB aside, which counts as taken
    number = 0
    try:
        with limited_memory(MAX_MEMORY_BYTES):
            names, batches = table(file, place)
        refuse_duplicate_columns(place.at(1), names)
        for records in _within_memory(_pieces(batches, file, place)):
            for record in records:
                number += 1
                yield number, record
    except MemoryError as error:
        raise BadDocument(
            f"{place.at(number + 1)}: reading on takes over {MAX_MEMORY_BYTES:,} bytes of memory, the most for {kind}: "
            "write the file again with fewer rows in a row group or record batch"
        ) from error
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise BadDocument(f"{place.at(number + 1)}: not readable as {kind}: {error}; write it again") from error


def _within_memory(pieces: Iterator[_Piece]) -> Iterator[_Piece]:
    """Yield the pieces; raise MemoryError for one that takes too much memory while it is made."""
    import pyarrow

    while True:
        with limited_memory(MAX_MEMORY_BYTES, pyarrow.total_allocated_bytes):
            piece = next(pieces, None)
        if piece is None:
            return
        yield piece


def _pieces(batches: Iterator[Any], file: SourceFile, place: Place) -> Iterator[_Piece]:
    """Yield the rows of the batches, a few at a time."""
    number = 0
    for batch in batches:
        if isinstance(batch, ValueError):
            number += 1
            yield [_unreadable(place.at(number), batch)]
            continue
        for start in range(0, batch.num_rows, BATCH_ROWS):
            piece = batch.slice(start, BATCH_ROWS)
            yield from _records(piece, file, place, number + 1)
            number += piece.num_rows


def _records(batch: Any, file: SourceFile, place: Place, first: int) -> Iterator[_Piece]:
    """Yield the rows of a batch: at once where none is large or bad, else one by one."""
    try:
        file.count_unpacked(batch.num_rows, size := num_bytes(batch), place.at(first))
        found = batch.to_pylist() if size <= MAX_ROW_BYTES else None
    except (ValueError, OverflowError):
        found = None  # such as a string that is not UTF-8
    if found is not None:
        yield found
        return
    for row in range(batch.num_rows):
        yield [_record(batch.slice(row, 1), place.at(first + row))]


def _record(row: Any, where: str) -> Record | BadDocument:
    """Return the only row of a batch."""
    try:
        if num_bytes(row) > MAX_ROW_BYTES:
            return too_long(where)
        found: Record = row.to_pylist()[0]
        return found
    except (ValueError, OverflowError) as error:
        return _unreadable(where, error)


def _unreadable(where: str, error: Exception) -> BadDocument:
    return BadDocument(f"{where}: a value cannot be read: {error}; correct it")


def _parquet(file: SourceFile, place: Place) -> _Table:
    from pyarrow import parquet

    _need_positions(file, place)
    columns = parquet.ParquetFile(file.stream).schema
    # Were the repeated values of a column written out, a small file could fill the memory.
    repeatable = [
        column.path
        for column in (columns.column(n) for n in range(len(columns)))
        if column.physical_type == "BYTE_ARRAY" and column.logical_type.type in _REPEATABLE and "." not in column.path
    ]
    found = parquet.ParquetFile(
        file.stream, buffer_size=BLOCK_BYTES, pre_buffer=False, read_dictionary=repeatable or None
    )
    check_types(found.schema_arrow, place)
    return found.schema_arrow.names, _parquet_batches(found, file)


def _parquet_batches(found: Any, file: SourceFile) -> Iterator[Any]:
    groups = [found.metadata.row_group(n) for n in range(found.metadata.num_row_groups)]
    row_bytes = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    num_rows, num_done = found.metadata.num_rows, 0
    file.fraction = lambda: num_done / num_rows if num_rows else None
    batch_rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(row_bytes, 1)))
    # Without threads: one that gets no memory would end the process.
    for batch in found.iter_batches(batch_size=batch_rows, use_threads=False):
        yield batch
        num_done += batch.num_rows


def _arrow(file: SourceFile, place: Place) -> _Table:
    from pyarrow import ipc

    if file.stream.peek(len(_ARROW_FILE)).startswith(_ARROW_FILE):
        _need_positions(file, place)
        found = ipc.open_file(file.stream)
        check_types(found.schema, place)
        return found.schema.names, _validated(found.get_batch(n) for n in range(found.num_record_batches))
    stream = ipc.open_stream(file.stream)
    check_types(stream.schema, place)
    return stream.schema.names, _validated(iter(stream))


def _validated(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches, after a look at the places of their values: Arrow takes these from the file as they are.

    A batch with an invalid row is yielded row by row, with an error in place of each that is invalid.
    """
    for batch in batches:
        batch.validate()
        try:
            batch.validate(full=True)
        except ValueError:
            yield from map(_valid_or_error, (batch.slice(row, 1) for row in range(batch.num_rows)))
        else:
            yield batch


def _valid_or_error(row: Any) -> Any:
    try:
        row.validate(full=True)
    except ValueError as error:
        return error
    return row


def _need_positions(file: SourceFile, place: Place) -> None:
    """Raise FileError for a file that can only be read from its beginning to its end."""
    if not file.stream.seekable():
        raise FileError(f"{place.path} is sent as a whole only: download it, and name the file on this machine")
