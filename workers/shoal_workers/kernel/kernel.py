"""The kernel's Python interface: models, compute threads and passes."""

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal_workers.kernel.weights import KernelWeights, Shape


@cache
def load(path: Path) -> ctypes.CDLL:
    """Load the library and declare its functions."""
    loaded = ctypes.CDLL(str(path))
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    declared: dict[str, tuple[list[Any], Any]] = {
        "open_model": ([ctypes.POINTER(Shape), *[pointer] * 4, size, pointer, size, number], pointer),
        "uses_amx": ([pointer], number),
        "close_model": ([pointer], None),
        "open_pool": ([pointer, number], pointer),
        "close_pool": ([pointer], None),
        "start_pass": ([pointer, pointer, pointer, number, pointer, number], pointer),
        "wait_pass": ([pointer, ctypes.c_double], number),
        "close_pass": ([pointer], None),
    }
    for name, (arguments, result) in declared.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, result
    return loaded


class KernelModel:
    """A model in the kernel. Raises ValueError for weights that do not fit their shape, or for too little memory."""

    def __init__(self, library: ctypes.CDLL, weights: KernelWeights, may_use_amx: bool = True):
        shape, words, positions, norms, panels, scales = weights
        arrays = tuple(map(np.ascontiguousarray, (words, positions, norms)))
        rows = (shape.num_words, shape.num_positions, 2 + 4 * shape.layers)
        kinds = ("float16", "float32", "float32")
        if [(one.size, str(one.dtype)) for one in arrays] != [
            (n * shape.width, kind) for n, kind in zip(rows, kinds, strict=True)
        ]:
            raise ValueError("words, positions or norms have other sizes than the shape says")
        pointers = (array.ctypes.data for array in arrays)
        buffers = ((ctypes.c_char * len(data)).from_buffer(data) for data in (panels, scales))
        sized = [value for buffer in buffers for value in (buffer, len(buffer))]
        handle = library.open_model(ctypes.byref(shape), *pointers, *sized, may_use_amx)
        if not handle:
            raise ValueError("the kernel does not support the model, or there is no memory for it")
        self.library, self.handle, self.width = library, handle, int(shape.width)
        self.uses_amx = bool(library.uses_amx(handle))
        self._close = _finalizer(self, library.close_model, handle, arrays)


class KernelThreads:
    """Threads that compute passes of a model. They end with this object. Raises MemoryError if they cannot start."""

    def __init__(self, model: KernelModel, number: int):
        self.model = model
        self.handle = model.library.open_pool(model.handle, number)
        if not self.handle:
            raise MemoryError(f"there is no memory for {number} compute threads, or the system gives none")
        self._close = _finalizer(self, model.library.close_pool, self.handle, model)


class KernelPass:
    """A forward pass for the vectors `tokens`, in blocks for `num_parts` threads. Position 0 begins a new text."""

    def __init__(self, threads: KernelThreads, ids: NDArray[np.int32], positions: NDArray[np.int32], num_parts: int):
        model = threads.model
        ids, positions = (np.ascontiguousarray(array, np.int32).ravel() for array in (ids, positions))
        if len(ids) != len(positions):
            raise ValueError(f"there are {len(ids)} ids and {len(positions)} positions")
        self.tokens = np.empty((len(ids), model.width), np.float32)
        pointers = ids.ctypes.data, positions.ctypes.data, len(ids), self.tokens.ctypes.data
        self._library = library = model.library
        self._handle = library.start_pass(threads.handle, *pointers, num_parts)
        if not self._handle:
            raise ValueError("a text is empty or too long, or has an id or a position that the model does not have")
        self._close = _finalizer(self, library.close_pass, self._handle, (threads, ids, positions, self.tokens))

    def ends_within(self, seconds: float) -> bool:
        """Wait at most `seconds` for the end; return True if the pass has ended. No other thread may close the pass."""
        return not self._close.alive or bool(self._library.wait_pass(self._handle, seconds))

    def close(self) -> None:
        """Wait for the end of the pass."""
        self._close()


def _finalizer(owner: object, close: Callable[[int], None], handle: int, kept: object) -> "weakref.finalize[Any, Any]":
    """Return a finalizer that closes the handle once, when called or when `owner` is gone. It keeps `kept`."""
    return weakref.finalize(owner, lambda _: close(handle), kept)
