"""The pid file of a home folder. Its lock lets one process serve from the folder, and ends with that process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TextIO

from shoal.errors import BadSetting
from shoal.settings import Settings


@contextmanager
def hold(settings: Settings) -> Iterator[None]:
    """Hold the pid file's lock until this process ends. Raises BadSetting if another process holds it."""
    make_home(settings)
    with _path(settings).open("a+") as file:
        if not _lock(file):
            raise already_serving(settings, running_pid(settings))
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def make_home(settings: Settings) -> None:
    """Make the home folder unless it is there. Raises BadSetting if nothing can be written there."""
    home = settings.home_folder
    try:
        home.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise BadSetting(f"{home} cannot be written ({error.strerror}): choose another folder with --home") from error


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
    remedy = "stop it first, by this command with --stop; or start a second service, with another --home and --port"
    return BadSetting(f"{process} serves from {settings.home_folder} already: {remedy}")


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _path(settings: Settings) -> Path:
    return settings.home_folder / "serve.pid"
