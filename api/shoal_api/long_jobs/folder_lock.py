"""The lock of a folder: a request holds it while it fills the folder, and the system lets go of it with the process."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.errors import Overloaded


def make_and_lock(folder: Path) -> int:
    """Return a descriptor of the folder as `lock` does; make the folder, again if it is removed in this moment."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return lock(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder in the block. Raises FileNotFoundError and Overloaded as `lock` does."""
    descriptor = lock(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def lock(folder: Path) -> int:
    """Return a descriptor of the folder that holds its lock until it is closed.

    Raises Overloaded while a request has it, and FileNotFoundError if the folder was removed before it was locked.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), folder.lstat()):
            raise FileNotFoundError(errno.ENOENT, "another folder has its name", str(folder))
    except BlockingIOError:
        os.close(descriptor)
        raise Overloaded(
            "an earlier request with this idempotency key, or one that deletes its job, is under way: wait until it is "
            "answered"
        ) from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
