"""Which process serves from a home folder: one at a time, by a lock that ends with the process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from shoal.errors import BadSetting
from shoal.settings import Settings


@contextmanager
def only_one(settings: Settings) -> Iterator[None]:
    """Holds the home folder's lock, which the system lets go of however this process ends."""
    path = _pidfile(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        if not _lock(file):
            raise BadSetting(already(settings, running(settings)))
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def running(settings: Settings) -> int | None:
    """The process that serves from the home folder, if one does."""
    path = _pidfile(settings)
    if not path.exists():
        return None
    with path.open("r+") as file:
        return None if _lock(file) else int(file.read() or 0) or None


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def already(settings: Settings, pid: int | None) -> str:
    """What to say to one who would start another."""
    remedy = "end it with --stop, or choose another --home and --redis-url"
    return f"process {pid} serves from {settings.home_folder} already: {remedy}"


def _pidfile(settings: Settings) -> Path:
    return settings.home_folder / "serve.pid"
