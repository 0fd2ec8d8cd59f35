"""The check of a version's files: each is compared with its checksum, by one worker of a machine."""

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

from shoal.errors import IndexCorrupt
from shoal_workers.index.files.verified_files import FileState, Verified, VerifiedFiles

#: Size from which a file is large: its checksum is not compared when a version is opened, as that would take seconds.
LARGE_BYTES = 2**24

#: Bytes of a file that are read and added to its checksum at a time.
_PIECE_BYTES = 2**24

#: Age from which a file is known by its times, in seconds: two writes in a shorter time may leave it the same ones.
SETTLED_S = 2.0


class FileCheck:
    """The check of the files in the folder of a version. For one thread at a time.

    Files that are `verified` are not read, and those that are found to be right become so.
    """

    def __init__(self, version: Path, checksums: Mapping[str, str], verified: VerifiedFiles | None = None):
        self._version = version
        self._checksums = checksums
        self._verified = verified
        self._known: dict[str, Verified] = {}
        self._unchecked = list(checksums)
        self._skip_verified()

    @property
    def is_done(self) -> bool:
        """True once all files have been compared with their checksums."""
        return not self._unchecked

    def check_small(self) -> None:
        """Compare the files that are not large. Raises IndexCorrupt for a wrong one, or one that cannot be read."""
        for name in [name for name in self._unchecked if _size(self._version / name) < LARGE_BYTES]:
            try:
                self._compare(name)
            except OSError as error:
                raise IndexCorrupt(
                    f"{self._version / name} cannot be read ({error.strerror}): build the index again"
                ) from error
        self._remember()

    def check_rest(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Compare the files that are left, unless `is_wanted`, which is called often, returns False.

        While another worker of this machine compares files, or these are only just written, do nothing. Raises
        IndexCorrupt for a wrong one, and OSError for a file that cannot be read now.
        """
        with self._verified.turn() if self._verified else nullcontext(True) as is_our_turn:
            self._skip_verified()
            if not is_our_turn or (self._verified and any(map(self._is_fresh, self._unchecked))):
                return
            for name in list(self._unchecked):
                if not self._compare(name, is_wanted):
                    return
                self._remember()

    def _skip_verified(self) -> None:
        if self._verified:
            self._known |= self._verified.read(self._version)
            self._unchecked = [name for name in self._unchecked if not self._is_verified(name)]

    def _is_verified(self, name: str) -> bool:
        known = self._known.get(name)
        if not known or known.checksum != self._checksums[name]:
            return False
        try:
            return known.state == FileState.of(self._version / name)
        except OSError:
            return False

    def _is_fresh(self, name: str) -> bool:
        return abs(time.time() - _changed_s(FileState.of(self._version / name))) < SETTLED_S

    def _compare(self, name: str, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Compare one file; return False if that is not wanted any more. Raises IndexCorrupt and OSError."""
        path, digest = self._version / name, hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            state = FileState.of(file.fileno())
            piece = bytearray(max(1, min(state.size, _PIECE_BYTES)))
            while size := file.readinto(piece):
                if not is_wanted():
                    return False
                digest.update(memoryview(piece)[:size])
            check_digest(path, digest.hexdigest(), self._checksums[name])
            is_steady = state == FileState.of(file.fileno()) and _changed_s(state) < time.time() - SETTLED_S
            if self._verified and is_steady:
                with suppress(OSError):  # it may be on a disk that cannot be written
                    os.fsync(file.fileno())  # else a power failure might take what it holds, and leave its times
                self._known[name] = Verified(state, digest.hexdigest())
        self._unchecked.remove(name)
        return True

    def _remember(self) -> None:
        if self._verified and self._known:
            kept = {name: known for name, known in self._known.items() if name in self._checksums}
            self._verified.write(self._version, kept)


def check_digest(path: Path, found: str, expected: str) -> None:
    """Raise IndexCorrupt unless a file has the checksum that is expected."""
    if found != expected:
        raise IndexCorrupt(
            f"{path} is not what was built (checksum {found[:8]}…, not {expected[:8]}…): build the index again"
        )


def _changed_s(state: FileState) -> float:
    """Return the time of the last change of a file, in Unix seconds."""
    return max(state.modified_ns, state.changed_ns) / 1e9


def _size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if there is none, which its checksum then tells."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
