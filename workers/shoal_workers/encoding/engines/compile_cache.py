"""Compiled graphs, each kept in a file, so that a worker need not compile what another one has compiled before."""

import fcntl
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

_DIGEST_BYTES = 16


def load_or_make(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return the contents of the file; if it is missing or damaged, those that `make` returns, which are kept in it.

    One process at a time makes them, and the others wait for it. Raises OSError where no file can be locked or written.
    """
    if (contents := _read(path)) is not None:
        return contents
    path.parent.mkdir(exist_ok=True)
    with path.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (contents := _read(path)) is None:
            contents = make()
            _write(path, contents)
    return contents


def _read(path: Path) -> bytes | None:
    with suppress(OSError):
        kept = path.read_bytes()
        digest, contents = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
        if digest == _digest(contents):
            return contents
    return None


def _write(path: Path, contents: bytes) -> None:
    unfinished = path.with_suffix(".new")
    try:
        unfinished.write_bytes(_digest(contents) + contents)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _digest(contents: bytes) -> bytes:
    return blake2b(contents, digest_size=_DIGEST_BYTES).digest()
