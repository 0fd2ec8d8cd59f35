"""Arrays in `.npy` files: written piece by piece, and read through a memory map."""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from shoal.errors import IndexCorrupt

#: Largest header that is parsed. The headers that a build writes have about 60 bytes.
MAX_HEADER_BYTES = 1_000


def write_header(file: BinaryIO, dtype: DTypeLike, shape: tuple[int, ...]) -> None:
    """Write the `.npy` header of an array. The caller then writes the numbers in C order, in pieces of any size.

    A build writes to files and not to a memory map: on a full disk, a write raises OSError, but a map ends the process
    with SIGBUS.
    """
    description = {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(file, description)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write a whole array in C order."""
    with path.open("wb") as file:
        write_header(file, array.dtype, array.shape)
        file.write(array.tobytes())


def open_array(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Memory-map the array in a file, read-only.

    Raises IndexCorrupt unless the file contains exactly one array of this type and shape in C order.
    """
    try:
        with path.open("rb") as file:
            if (version := npy.read_magic(file)) != (1, 0):
                raise ValueError(f"version {version} of the .npy format, not (1, 0)")
            found = npy.read_array_header_1_0(file, max_header_size=MAX_HEADER_BYTES)
            if found != (shape, False, np.dtype(dtype)):
                raise ValueError(f"it holds {_described(*found)}, not {_described(shape, False, np.dtype(dtype))}")
            # The shape is the expected one, so computing with it is safe.
            array = np.memmap(file, dtype=dtype, mode="r", offset=file.tell(), shape=shape)
            if (extra_bytes := path.stat().st_size - array.offset - array.nbytes) > 0:
                raise ValueError(f"it has {extra_bytes:,} bytes after its array")
            return np.asarray(array)
    except Exception as error:  # numpy's header parser may raise any error of Python's parser
        raise IndexCorrupt(f"{path} cannot be read ({error!s:.200}): build the index again") from error


def _described(shape: tuple[int, ...], fortran_order: bool, dtype: "np.dtype[Any]") -> str:
    return f"{dtype!s:.20} {list(shape)!s:.60}{' in Fortran order' if fortran_order else ''}"
