"""The pid file of a home folder. Its lock lets one process serve from the folder, and ends with that process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from shoal.errors import BadSetting
from shoal.settings import Settings


@contextmanager
def hold(settings: Settings) -> Iterator[None]:
    """Hold the pid file's lock; the system releases it however this process ends.

    Raises BadSetting if another process holds it.
    """
    path = _path(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        if not _lock(file):
            raise already_serving(settings, running_pid(settings))
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def running_pid(settings: Settings) -> int | None:
    """Return the id of the process that serves from the home folder, or None."""
    path = _path(settings)
    if not path.exists():
        return None
    with path.open("r+") as file:
        return None if _lock(file) else int(file.read() or 0) or None


def already_serving(settings: Settings, pid: int | None) -> BadSetting:
    """Return the error for a second process in the same home folder."""
    process = f"process {pid}" if pid else "another process"
    remedy = "end it with --stop, or choose another --home and --port and name a Redis of your own with --redis-url"
    return BadSetting(f"{process} serves from {settings.home_folder} already: {remedy}")


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _path(settings: Settings) -> Path:
    return settings.home_folder / "serve.pid"
