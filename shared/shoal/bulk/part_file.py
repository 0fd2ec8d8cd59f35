"""The files of one part of a folder of vectors, in each format. They are written in constant memory."""

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from shoal.errors import MissingExtra
from shoal.process.extra import install_command

#: Size of the header of a .safetensors or .npy file, in bytes. It has the number of rows, and so is written last.
_HEADER_BYTES = 128

#: Number of rows in a row group of a .parquet file. They stay in memory until the group is full.
_GROUP_ROWS = 2_048

#: The endings of the file names of a part, for each format.
SUFFIXES = {
    "safetensors": (".safetensors", ".ids.jsonl"),
    "npy": (".npy", ".ids.jsonl"),
    "parquet": (".parquet",),
    "jsonl": (".jsonl",),
}


class PartFile:
    """A part that is being written in the format .jsonl: each line is an object with `id` and `vector`.

    `paths` has a file for each ending of the format, in the order of `SUFFIXES`. After `finish` the files are complete.
    """

    def __init__(self, paths: Sequence[Path], dimension: int):
        self.paths = paths
        self._dimension = dimension
        self._files: list[BinaryIO] = [path.open("wb") for path in paths]

    def write(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Append rows: their ids, and their vectors `[rows, dimension]`."""
        rows = zip(ids, vectors.tolist(), strict=True)
        self._files[0].writelines(_line({"id": id_, "vector": vector}) for id_, vector in rows)

    def finish(self) -> None:
        """Write what the format still needs: the rows in memory, the header or the end."""

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


class _RawPart(PartFile):
    """A part in the format .safetensors or .npy: a file with the bytes of the vectors, and a file with their ids."""

    def __init__(self, paths: Sequence[Path], dimension: int):
        super().__init__(paths, dimension)
        self._num_rows = 0
        self._files[0].write(bytes(_HEADER_BYTES))

    def write(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Append rows."""
        self._files[0].write(np.ascontiguousarray(vectors, "<f4").tobytes())
        self._files[1].writelines(map(_line, ids))
        self._num_rows += len(ids)

    def finish(self) -> None:
        """Write the header."""
        shape, header = (self._num_rows, self._dimension), BytesIO()
        if self.paths[0].suffix == ".npy":
            npy.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        else:
            about = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * shape[0] * shape[1]]}
            header.write((_HEADER_BYTES - 8).to_bytes(8, "little"))
            header.write(json.dumps({"vectors": about}, separators=(",", ":")).encode().ljust(_HEADER_BYTES - 8))
        assert header.tell() == _HEADER_BYTES  # numpy leaves room for any number of rows
        self._files[0].seek(0)
        self._files[0].write(header.getvalue())


class _ParquetPart(PartFile):
    """A part in the format .parquet, with the columns `id` and `vector`, a list of fixed length. Needs pyarrow."""

    def __init__(self, paths: Sequence[Path], dimension: int):
        super().__init__(paths, dimension)
        pa = self._pa = load_pyarrow()
        self._schema = pa.schema([("id", pa.string()), ("vector", pa.list_(pa.float32(), dimension))])
        self._writer = pa.parquet.ParquetWriter(self._files[0], self._schema, compression="none", use_dictionary=False)
        self._ids: list[str] = []
        self._vectors: list[NDArray[np.float32]] = []

    def write(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Keep rows in memory, and write them once they fill a row group."""
        self._ids += ids
        self._vectors.append(vectors)
        if len(self._ids) >= _GROUP_ROWS:
            self._write_group()

    def finish(self) -> None:
        """Write the rows in memory and the end of the table."""
        if self._ids:
            self._write_group()
        self._writer.close()

    def close(self) -> None:
        """Close the file."""
        self._writer.is_open = False  # otherwise pyarrow would write the end of the table into an unfinished part
        super().close()

    def _write_group(self) -> None:
        flat = self._pa.array(np.concatenate(self._vectors).ravel())
        columns = [self._pa.array(self._ids), self._pa.FixedSizeListArray.from_arrays(flat, self._dimension)]
        self._writer.write_table(self._pa.table(columns, schema=self._schema))
        self._ids, self._vectors = [], []


def open_part(format_name: str, paths: Sequence[Path], dimension: int) -> PartFile:
    """Open the files of a part for writing. Raises OSError, and MissingExtra for .parquet without pyarrow."""
    classes: dict[str, type[PartFile]] = {"jsonl": PartFile, "parquet": _ParquetPart}
    return classes.get(format_name, _RawPart)(paths, dimension)


def load_pyarrow() -> Any:
    """Return pyarrow, which writes .parquet. Raises MissingExtra if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(f"writing .parquet needs pyarrow; run: {install_command('parquet')}") from error
    return pyarrow


def _line(value: Any) -> bytes:
    return f"{json.dumps(value, ensure_ascii=False)}\n".encode()
