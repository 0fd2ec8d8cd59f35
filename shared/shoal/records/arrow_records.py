"""Records of files in columns: .parquet, .arrow and .feather. Needs pyarrow, which the extra `parquet` installs."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from shoal.contract.excerpt import excerpt
from shoal.errors import BadDocument, MissingExtra
from shoal.process.extra import install_command
from shoal.process.system_limits import limited_memory
from shoal.records.document import MAX_ROW_BYTES, Record, Records, SourceLabel, refuse_duplicate_columns, too_long
from shoal.records.source_file import BLOCK_BYTES, SourceFile

#: Largest number of rows in a batch, and about the largest size of a batch in bytes.
BATCH_ROWS, BATCH_BYTES = 1_024, 16 * 2**20

#: The first bytes of an Arrow file, which ends with a list of its batches. An Arrow stream begins with other bytes.
_ARROW_FILE = b"ARROW1"

#: The logical types of byte arrays in .parquet that pyarrow can read as a dictionary, which has repeated values once.
_REPEATABLE = {"STRING", "JSON", "ENUM", "NONE"}

#: Types whose values may be stored once and repeated. The size of such rows is unknown until the rows are made.
_REFUSED = re.compile(
    r"run_end_encoded<|union<|list_view<|dictionary<values=(fixed_size_binary|\w+_view|\w*list|struct|map|extension)"
)

#: Largest amount of memory for reading, in bytes. A small file may have a page or a record batch of any size.
MAX_MEMORY_BYTES = 2**30


def _rows(
    batches: Callable[[SourceFile, SourceLabel], Iterator[Any]], kind: str, file: SourceFile, label: SourceLabel
) -> Records:
    """Yield the rows of the batches, with their numbers. Raises BadDocument, or MissingExtra without pyarrow."""
    try:
        import pyarrow
        import pyarrow.compute  # loaded now, because it cannot be loaded when memory is short
    except ImportError as error:
        raise MissingExtra(f"reading {kind} needs pyarrow; run: {install_command('parquet')}") from error
    pyarrow.allocate_buffer(1)  # the first allocation reserves a GiB, which would count as used below
    number, pieces = 0, _pieces(batches(file, label), file, label, kind)
    try:
        while True:
            with limited_memory(MAX_MEMORY_BYTES, pyarrow.total_allocated_bytes):
                piece = next(pieces, None)
            if piece is None:
                return
            for record in piece:
                number += 1
                yield number, record
    except MemoryError as error:
        raise BadDocument(
            f"{label.at(number + 1)}: reading on takes over {MAX_MEMORY_BYTES:,} bytes of memory, the most for {kind}: "
            "write the file again with fewer rows in a row group or record batch"
        ) from error
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise BadDocument(f"{label.at(number + 1)}: not readable as {kind}: {error}; write it again") from error


def _pieces(
    batches: Iterator[Any], file: SourceFile, label: SourceLabel, kind: str
) -> Iterator[list[Record | BadDocument]]:
    """Yield the rows of the batches, `BATCH_ROWS` at a time, or one by one if rows are large or a row is bad."""
    first = 1
    for batch in batches:
        is_valid = kind == "parquet" or _is_valid(batch)
        for start in range(0, batch.num_rows, BATCH_ROWS):
            piece, found = batch.slice(start, BATCH_ROWS), None
            with suppress(ValueError, OverflowError):  # for example for a string that is not UTF-8
                if is_valid:
                    file.count_unpacked(piece.num_rows, size := sum(map(_num_bytes, piece.columns)), label.at(first))
                    found = piece.to_pylist() if size <= MAX_ROW_BYTES else None
            if found is not None:
                yield found
            else:
                for row in range(piece.num_rows):
                    yield [_record(piece.slice(row, 1), is_valid, file, label.at(first + row))]
            first += piece.num_rows


def _is_valid(batch: Any) -> bool:
    """Return False if a row of a batch is invalid. Arrow uses the offsets of values without checking them."""
    batch.validate()
    try:
        batch.validate(full=True)
    except ValueError:
        return False
    return True


def _record(row: Any, is_valid: bool, file: SourceFile, where: str) -> Record | BadDocument:
    """Return the record in a batch of one row, or its error. If a larger batch was invalid, check and count the row."""
    try:
        if not is_valid:
            row.validate(full=True)
        size = sum(map(_num_bytes, row.columns))
        if not is_valid:
            file.count_unpacked(1, size, where)
        if size > MAX_ROW_BYTES:
            return too_long(where)
        found: Record = row.to_pylist()[0]
        return found
    except (ValueError, OverflowError) as error:
        return BadDocument(f"{where}: a value cannot be read: {error}; correct it")


def _num_bytes(array: Any) -> int:
    """Return about how many bytes the values of an array need, with a copy of each repeated value."""
    from pyarrow import binary, compute, large_binary, large_string, string, types

    kind, least = array.type, 8 * len(array)
    if hasattr(array, "storage"):
        return _num_bytes(array.storage)
    if types.is_dictionary(kind) and kind.value_type in (string(), large_string(), binary(), large_binary()):
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        return least + int(compute.sum(lengths).as_py() or 0)
    if types.is_struct(kind):
        return least + sum(map(_num_bytes, array.flatten()))
    if types.is_map(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return least + sum(_num_bytes(values.slice(first, last - first)) for values in (array.keys, array.items))
    if types.is_nested(kind):
        return least + _num_bytes(array.flatten())
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # A view is 16 bytes, and begins with 4 bytes for the length of its text.
        views = memoryview(array.buffers()[1]).cast("i")
        return least + sum(views[4 * array.offset : 4 * (array.offset + len(array)) : 4])
    return max(least, int(array.nbytes))


def _check_columns(schema: Any, label: SourceLabel) -> None:
    """Raise BadDocument for two columns with the same name, and for a column with one of the types in `_REFUSED`."""
    refuse_duplicate_columns(label.at(1), schema.names)
    for field in schema:
        if _REFUSED.search(str(field.type)):
            raise BadDocument(
                f"{label.at(1)}: the column {excerpt(field.name)} is of the type {excerpt(str(field.type))}, which is "
                "not read: convert it, or leave it out"
            )


def _parquet(file: SourceFile, label: SourceLabel) -> Iterator[Any]:
    from pyarrow import parquet

    columns = parquet.ParquetFile(file.stream).schema
    # If repeated values were copied, a small file could fill the memory.
    repeatable = [
        column.path
        for column in (columns.column(n) for n in range(len(columns)))
        if column.physical_type == "BYTE_ARRAY" and column.logical_type.type in _REPEATABLE and "." not in column.path
    ]
    found = parquet.ParquetFile(
        file.stream, buffer_size=BLOCK_BYTES, pre_buffer=False, read_dictionary=repeatable or None
    )
    _check_columns(found.schema_arrow, label)
    groups = [found.metadata.row_group(n) for n in range(found.metadata.num_row_groups)]
    row_bytes = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    num_rows, num_done = found.metadata.num_rows, 0
    file.fraction = lambda: num_done / num_rows if num_rows else None
    batch_rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(row_bytes, 1)))
    # If a thread of pyarrow got no memory, the process would end.
    for batch in found.iter_batches(batch_size=batch_rows, use_threads=False):
        yield batch
        num_done += batch.num_rows


def _arrow(file: SourceFile, label: SourceLabel) -> Iterator[Any]:
    from pyarrow import ipc

    if file.stream.peek(len(_ARROW_FILE)).startswith(_ARROW_FILE):
        found = ipc.open_file(file.stream)
        _check_columns(found.schema, label)
        yield from map(found.get_batch, range(found.num_record_batches))
    else:
        stream = ipc.open_stream(file.stream)
        _check_columns(stream.schema, label)
        yield from stream


#: Yields the rows of a .parquet file. Needs memory for a page of each column and a batch of rows.
read_parquet = partial(_rows, _parquet, "parquet")

#: Yields the rows of an Arrow file or stream. Needs memory for one record batch.
read_arrow = partial(_rows, _arrow, "Arrow")
