"""The files that a worker of this machine has found to be right, so that no other one reads them again for that."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

#: Largest record that is read; that of a version has about 4 KB.
MAX_RECORD_BYTES = 2**16

#: Bits of a file's mode with which others than its owner may write it.
_WRITABLE_BY_OTHERS = 0o022

#: The errors of a record that is none: it cannot be read, or another program wrote it.
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


class FileState(NamedTuple):
    """Properties by which a file is told from another one, and from itself before a write.

    A program can set the time of the last modification, but not that of the last change: the kernel does.
    """

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, file: Path | int) -> "FileState":
        """Return the state of a file, given by its path or its descriptor. Raises OSError."""
        found = os.stat(file)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class Verified(NamedTuple):
    """The state in which a file had a checksum."""

    state: FileState
    checksum: str


class VerifiedFiles:
    """Records of the files of versions, one record a version, in a folder that this user alone may write.

    A record that cannot be read or written is none: files are then read again.
    """

    def __init__(self, folder: Path):
        self._folder = folder

    def read(self, version: Path) -> dict[str, Verified]:
        """Return what is known of the files of a version, by their names."""
        try:
            values = json.loads(self._read_own(self._path(version)))
            found = {name: Verified(FileState(*state), checksum) for name, (state, checksum) in values["files"].items()}
            return found if values["folder"] == os.path.realpath(version) else {}
        except _UNREADABLE:
            return {}

    def write(self, version: Path, files: Mapping[str, Verified]) -> None:
        """Replace what is known of the files of a version."""
        record = {"folder": os.path.realpath(version), "files": files}
        path = self._path(version)
        scratch = path.with_name(f".{path.name}-{os.getpid()}")
        with suppress(OSError):
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
                json.dump(record, file)
            scratch.replace(path)

    def forget_removed(self) -> None:
        """Remove the records of versions that are there no more."""
        with suppress(OSError):
            for path in self._folder.glob("*.json"):
                with suppress(*_UNREADABLE):
                    if not os.path.isdir(json.loads(self._read_own(path))["folder"]):
                        path.unlink()

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Yield True unless another worker of this machine reads files now, whose turn it is until the context ends."""
        try:
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
            lock = os.open(self._folder / "turn.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:  # the folder cannot be written: each worker reads by itself
            yield True
            return
        try:
            yield _has_locked(lock)
        finally:
            os.close(lock)

    def _path(self, version: Path) -> Path:
        return self._folder / f"{sha256(os.fsencode(os.path.realpath(version))).hexdigest()[:32]}.json"

    def _read_own(self, path: Path) -> bytes:
        """Return the bytes of a record; raise PermissionError if another user could have written it."""
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            for found in (os.stat(self._folder), os.fstat(file.fileno())):
                if found.st_uid != os.geteuid() or found.st_mode & _WRITABLE_BY_OTHERS:
                    raise PermissionError(f"{path} may be written by other users")
            return file.read(MAX_RECORD_BYTES)


def _has_locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
