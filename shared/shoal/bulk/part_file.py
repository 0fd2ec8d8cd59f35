"""The files of one part, in the formats that a folder of vectors may have, written row by row in constant memory."""

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

#: Bytes before the vectors of a .safetensors or .npy file. It is written last, as it has the number of rows.
_HEADER_BYTES = 128

#: Rows of a row group of a .parquet file; they are held in memory until the group is full.
_GROUP_ROWS = 2_048

#: The endings of the files of a part, by the name of the format.
SUFFIXES = {
    "safetensors": (".safetensors", ".ids.jsonl"),
    "npy": (".npy", ".ids.jsonl"),
    "parquet": (".parquet",),
    "jsonl": (".jsonl",),
}


class PartFile:
    """The files of a part while they are written; `paths` are those of the endings of the format, in order."""

    def __init__(self, paths: Sequence[Path], dimension: int):
        self.paths = paths
        self.dimension = dimension
        self.num_rows = 0
        self._files: list[BinaryIO] = [path.open("wb") for path in paths]

    def write(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Append rows: their ids, and their vectors `[rows, dimension]`."""
        self._write(ids, np.ascontiguousarray(vectors, "<f4"))
        self.num_rows += len(ids)

    def finish(self) -> None:
        """Write what is left."""

    def close(self) -> None:
        """Close the files; they are whole only after `finish`."""
        for file in self._files:
            file.close()

    def _write(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        raise NotImplementedError


class _RawPart(PartFile):
    """Vectors as they are in memory, after a header of fixed size, and a file of their ids."""

    def __init__(self, paths: Sequence[Path], dimension: int):
        super().__init__(paths, dimension)
        self._files[0].write(bytes(_HEADER_BYTES))

    def _write(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self._files[0].write(vectors.tobytes())
        self._files[1].writelines(_line(id_) for id_ in ids)

    def finish(self) -> None:
        """Write the header."""
        self._files[0].seek(0)
        self._files[0].write(self._header())

    def _header(self) -> bytes:
        shape = [self.num_rows, self.dimension]
        about = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * shape[0] * shape[1]]}
        text = json.dumps({"vectors": about}, separators=(",", ":")).encode()
        num_bytes = _HEADER_BYTES - 8
        return num_bytes.to_bytes(8, "little") + text.ljust(num_bytes)


class _NpyPart(_RawPart):
    def _header(self) -> bytes:
        buffer = BytesIO()
        shape = (self.num_rows, self.dimension)
        npy.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": shape})
        assert buffer.tell() == _HEADER_BYTES  # numpy leaves room for any number of rows
        return buffer.getvalue()


class _JsonlPart(PartFile):
    """An object a line, with `id` and `vector`."""

    def _write(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        rows = zip(ids, vectors.tolist(), strict=True)
        self._files[0].writelines(_line({"id": id_, "vector": vector}) for id_, vector in rows)


class _ParquetPart(PartFile):
    """A table with the columns `id` and `vector`, a list of fixed length. Needs pyarrow."""

    def __init__(self, paths: Sequence[Path], dimension: int):
        super().__init__(paths, dimension)
        pa = self._pa = _pyarrow()
        self._schema = pa.schema([("id", pa.string()), ("vector", pa.list_(pa.float32(), dimension))])
        self._writer = pa.parquet.ParquetWriter(self._files[0], self._schema, compression="none", use_dictionary=False)
        self._ids: list[str] = []
        self._vectors: list[NDArray[np.float32]] = []

    def _write(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self._ids += ids
        self._vectors.append(vectors)
        if len(self._ids) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        flat = self._pa.array(np.concatenate(self._vectors).ravel())
        columns = [self._pa.array(self._ids), self._pa.FixedSizeListArray.from_arrays(flat, self.dimension)]
        self._writer.write_table(self._pa.table(columns, schema=self._schema))
        self._ids, self._vectors = [], []

    def finish(self) -> None:
        """Write the rows that are held, and the end of the table."""
        if self._ids:
            self._flush()
        self._writer.close()

    def close(self) -> None:
        """Close the file."""
        self._writer.is_open = False  # else its end would write to the file of an unfinished part
        super().close()


_CLASSES: dict[str, type[PartFile]] = {
    "safetensors": _RawPart,
    "npy": _NpyPart,
    "parquet": _ParquetPart,
    "jsonl": _JsonlPart,
}


def open_part(format_name: str, paths: Sequence[Path], dimension: int) -> PartFile:
    """Open the files of a part. Raises OSError, and MissingExtra where .parquet cannot be written."""
    return _CLASSES[format_name](paths, dimension)


def check_format(format_name: str) -> None:
    """Raise MissingExtra if a library that the format needs is not installed."""
    if format_name == "parquet":
        _pyarrow()


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(f"writing .parquet needs pyarrow; run: {install_command('parquet')}") from error
    return pyarrow


def _line(value: Any) -> bytes:
    return f"{json.dumps(value, ensure_ascii=False)}\n".encode()
