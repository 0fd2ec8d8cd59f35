"""Writing files and folders so that they survive a power failure, and locks of files and folders."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.errors import IndexBusy, IndexNotFound


def replace_file(path: Path, text: str) -> None:
    """Write a small file in one step: readers see the old text or the new one, even after a power failure.

    The caller must hold a lock. A partial file that a kill or a full disk leaves is overwritten by the next call.
    """
    scratch = path.with_name(f".{path.name}-new")
    with scratch.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    sync_folder(path.parent)


def sync_files(folder: Path) -> None:
    """Sync the files in a folder, and their names, to the disk."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Sync the names of the files in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(
    folder: Path, name: str = "", *, work: str = "", waiting: Callable[[], object] | None = None
) -> Iterator[None]:
    """Hold the lock of an index's folder, or of the file `name` in it. The system releases it if the process dies.

    While another process holds the lock, `waiting` is called again and again; without `waiting`, IndexBusy names the
    `work` of that process. Raises IndexNotFound if there is no such folder.
    """
    path = folder / name
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT if name else os.O_RDONLY, 0o644)
    except OSError as error:
        raise IndexNotFound(f"{folder} holds no index ({error.strerror}): check its name") from error
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waiting is None:
                    raise IndexBusy(f"{folder} has a {work} already: wait until it has ended, or stop it") from None
            waiting()
            time.sleep(0.2)
        yield
    finally:
        os.close(lock)
