"""The files of one part of a folder of vectors, in each format."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shoal.errors import MissingExtra
from shoal.process.extra import install_command

#: Number of rows in a row group of a .parquet file.
_GROUP_ROWS = 2_048

#: The endings of the file names of a part, for each format.
SUFFIXES = {
    "safetensors": (".safetensors", ".ids.jsonl"),
    "npy": (".npy", ".ids.jsonl"),
    "parquet": (".parquet",),
    "jsonl": (".jsonl",),
}


def write_files(format_name: str, paths: Sequence[Path], ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
    """Write the ids and the vectors `[rows, dimension]` of a part. `paths` has a path for each ending of the format.

    Raises OSError, and MissingExtra for .parquet without pyarrow.
    """
    with paths[0].open("wb") as file:
        _WRITERS[format_name](file, ids, vectors)
    for path in paths[1:]:
        with path.open("wb") as file:
            file.writelines(map(_line, ids))


def _write_safetensors(file: BinaryIO, _: Sequence[str], vectors: NDArray[np.float32]) -> None:
    about = {"vectors": {"dtype": "F32", "shape": vectors.shape, "data_offsets": [0, vectors.nbytes]}}
    header = json.dumps(about, separators=(",", ":")).encode()
    header = header.ljust(-8 * (-len(header) // 8))  # vectors begin at a multiple of 8 bytes
    file.write(len(header).to_bytes(8, "little") + header)
    file.write(vectors.astype("<f4", copy=False).data)  # the error of `tofile` would not say that the disk is full


def _write_npy(file: BinaryIO, _: Sequence[str], vectors: NDArray[np.float32]) -> None:
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(vectors))
    file.write(vectors.data)


def _write_jsonl(file: BinaryIO, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
    rows = zip(ids, vectors, strict=True)
    file.writelines(_line({"id": id_, "vector": vector.tolist()}) for id_, vector in rows)


def _write_parquet(file: BinaryIO, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
    pa = load_pyarrow()
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    table = pa.table({"id": pa.array(ids, pa.string()), "vector": column})
    pa.parquet.write_table(table, file, row_group_size=_GROUP_ROWS, compression="none", use_dictionary=False)


#: The function that writes the first file of a part, for each format.
_WRITERS = {
    "safetensors": _write_safetensors,
    "npy": _write_npy,
    "parquet": _write_parquet,
    "jsonl": _write_jsonl,
}


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
