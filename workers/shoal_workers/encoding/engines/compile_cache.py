"""Files of compiled graphs and measured ranges, so that each is made once for all workers."""

import fcntl
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

#: Longest wait for another process that makes the same file, in seconds. The other process may be suspended.
MAX_WAIT_S = 30.0

_TRY_EVERY_S = 0.05

_DIGEST_BYTES = 16


def load_or_make(path: Path, make: Callable[[], bytes], max_wait_s: float = MAX_WAIT_S) -> bytes:
    """Return the contents of the file. If it is missing, one process makes and writes them. Raises OSError."""
    if (contents := _read(path)) is not None:
        return contents
    path.parent.mkdir(exist_ok=True)
    with path.with_suffix(".lock").open("wb") as lock:
        _lock(lock, max_wait_s)
        if (contents := _read(path)) is None:
            contents, unfinished = make(), path.with_suffix(".new")
            try:
                unfinished.write_bytes(_digest(contents) + contents)
                unfinished.replace(path)
            finally:
                unfinished.unlink(missing_ok=True)
    return contents


def _lock(file: BinaryIO, max_wait_s: float) -> None:
    until = time.monotonic() + max_wait_s
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise TimeoutError(f"another process holds {file.name} for over {max_wait_s:g} s") from None
            time.sleep(_TRY_EVERY_S)


def _read(path: Path) -> bytes | None:
    with suppress(OSError):
        kept = path.read_bytes()
        digest, contents = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
        if digest == _digest(contents):
            return contents
    return None


def _digest(contents: bytes) -> bytes:
    return blake2b(contents, digest_size=_DIGEST_BYTES).digest()
