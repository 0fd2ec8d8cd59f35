"""Records of .parquet files. Needs pyarrow, from the `parquet` extra."""

from pathlib import Path

from shoal.errors import BadDocument, MissingExtra
from shoal.extra import install_command
from shoal.records.record import Records, location, open_source, refuse_duplicate_columns


def read_parquet(path: Path) -> Records:
    """Yield the rows, in constant memory.

    Raises BadDocument, InvalidRequest, or MissingExtra without pyarrow.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingExtra(f"reading .parquet needs pyarrow; run: {install_command('parquet')}") from error
    number = 1
    with open_source(path) as stream:
        try:
            file = parquet.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False)
            names = file.schema_arrow.names
            refuse_duplicate_columns(location(path, 1), names)
            batches = file.iter_batches(batch_size=1024)
            for number, cells in enumerate((row for batch in batches for row in zip(*batch.columns, strict=True)), 1):
                yield number, {name: cell.as_py() for name, cell in zip(names, cells, strict=True)}
        except (ArrowException, OSError, ValueError, OverflowError) as error:
            raise BadDocument(f"{location(path, number)}: not readable as parquet: {error}; write it again") from error
