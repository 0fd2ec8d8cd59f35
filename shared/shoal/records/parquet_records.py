"""Records of .parquet files. Needs pyarrow, which the extra `parquet` installs."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from shoal.errors import BadDocument, MissingExtra
from shoal.process.extra import install_command
from shoal.process.system_limits import limited_memory
from shoal.records.document import MAX_ROW_BYTES, Record, Records, SourceLabel, refuse_duplicate_columns, too_long
from shoal.records.source_file import BLOCK_BYTES, SourceFile

#: Largest number of rows in a batch, and the approximate size limit of a batch, in bytes.
BATCH_ROWS, BATCH_BYTES = 1_024, 16 * 2**20

#: Largest amount of memory for reading, in bytes. A small file may have a page of any size.
MAX_MEMORY_BYTES = 2**30


def read_parquet(file: SourceFile, label: SourceLabel) -> Records:
    """Yield the rows with their numbers. Raises BadDocument, or MissingExtra without pyarrow."""
    try:
        import pyarrow
        import pyarrow.compute  # loaded now, because it cannot be loaded when memory is short
    except ImportError as error:
        raise MissingExtra(f"reading parquet needs pyarrow; run: {install_command('parquet')}") from error
    pyarrow.allocate_buffer(1)  # the first allocation reserves a GiB, which would count as used below
    number, pieces = 0, _pieces(file, label)
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
            f"{label.at(number + 1)}: reading on takes over {MAX_MEMORY_BYTES:,} bytes of memory, the limit for "
            "parquet: write the file again with fewer rows in a row group"
        ) from error
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise BadDocument(f"{label.at(number + 1)}: not readable as parquet: {error}; write it again") from error


def _pieces(file: SourceFile, label: SourceLabel) -> Iterator[list[Record | BadDocument]]:
    """Yield the rows of each batch; a batch that is large or has a bad row is cut into single rows."""
    first = 1
    for batch in _batches(file, label):
        found = None
        with suppress(ValueError, OverflowError):  # for example for a string that is not UTF-8
            file.count_decompressed(batch.num_rows, size := sum(map(_num_bytes, batch.columns)), label.at(first))
            found = batch.to_pylist() if size <= MAX_ROW_BYTES else None
        if found is not None:
            yield found
        else:
            for row in range(batch.num_rows):
                yield [_record(batch.slice(row, 1), label.at(first + row))]
        first += batch.num_rows


def _record(row: Any, where: str) -> Record | BadDocument:
    """Return the record in a batch of one row, or its error."""
    try:
        if sum(map(_num_bytes, row.columns)) > MAX_ROW_BYTES:
            return too_long(where)
        found: Record = row.to_pylist()[0]
        return found
    except (ValueError, OverflowError) as error:
        return BadDocument(f"{where}: a value cannot be read: {error}; correct it")


def _num_bytes(array: Any) -> int:
    """Return roughly the size of an array's values in bytes. A repeated value counts each time."""
    from pyarrow import compute, types

    kind, least = array.type, 8 * len(array)
    if hasattr(array, "storage"):
        return _num_bytes(array.storage)
    if types.is_dictionary(kind):
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        return least + int(compute.sum(lengths).as_py() or 0)
    if types.is_struct(kind):
        return least + sum(map(_num_bytes, array.flatten()))
    if types.is_map(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return least + sum(_num_bytes(values.slice(first, last - first)) for values in (array.keys, array.items))
    if types.is_nested(kind):
        return least + _num_bytes(array.flatten())
    return max(least, int(array.nbytes))


def _batches(file: SourceFile, label: SourceLabel) -> Iterator[Any]:
    import pyarrow
    from pyarrow import parquet, types

    metadata = parquet.ParquetFile(file.stream).metadata
    writer = re.match(r"parquet-cpp-arrow version (\d+)", metadata.created_by or "")
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    found = parquet.ParquetFile(
        file.stream,
        buffer_size=BLOCK_BYTES,
        pre_buffer=False,
        # In ns, years from 2263 on are wrong. In us, years before 1970 are wrong in files of pyarrow before 23.
        coerce_int96_timestamp_unit="ns" if writer and int(writer[1]) < 23 else "us",
    )
    schema = found.schema_arrow
    refuse_duplicate_columns(label.at(1), schema.names)
    for n, column in enumerate(schema):
        if types.is_timestamp(column.type) and column.type.unit == "ns":  # Python's times have no nanoseconds
            schema = schema.set(n, column.with_type(pyarrow.timestamp("us", column.type.tz)))
    row_bytes = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    num_rows, num_done = found.metadata.num_rows, 0
    file.fraction = lambda: num_done / num_rows if num_rows else None
    batch_rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(row_bytes, 1)))
    # No threads are used, because the process would end if a thread of pyarrow got no memory.
    for batch in found.iter_batches(batch_size=batch_rows, use_threads=False):
        yield batch.cast(schema, safe=False)
        num_done += batch.num_rows
