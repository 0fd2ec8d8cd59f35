"""The check of a version's files: each is compared with its checksum."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from shoal.errors import IndexCorrupt

#: Size from which a file is large: its checksum is not compared when a version is opened, as that would take seconds.
LARGE_BYTES = 2**24

#: Bytes of a file that are read and added to its checksum at a time.
_PIECE_BYTES = 2**24


class FileCheck:
    """The check of the files in the folder of a version. For one thread at a time."""

    def __init__(self, version: Path, checksums: Mapping[str, str]):
        self._version = version
        self._unchecked = dict(checksums)

    @property
    def is_done(self) -> bool:
        """True once all files have been compared with their checksums."""
        return not self._unchecked

    def check_small(self) -> None:
        """Compare the files that are not large. Raises IndexCorrupt for a wrong one, or one that cannot be read."""
        for path in [self._version / name for name in self._unchecked]:
            try:
                if path.stat().st_size < LARGE_BYTES:
                    self._compare(path)
            except OSError as error:
                raise IndexCorrupt(f"{path} cannot be read ({error.strerror}): build the index again") from error

    def check_rest(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Compare the files that are left, unless `is_wanted`, which is called often, returns False.

        Raises IndexCorrupt for a wrong one, and OSError for a file that cannot be read now.
        """
        for name in list(self._unchecked):
            if not self._compare(self._version / name, is_wanted):
                return

    def _compare(self, path: Path, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Compare one file; return False if that is not wanted any more."""
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            piece = bytearray(max(1, min(path.stat().st_size, _PIECE_BYTES)))
            while size := file.readinto(piece):
                if not is_wanted():
                    return False
                digest.update(memoryview(piece)[:size])
        if (found := digest.hexdigest()) != (expected := self._unchecked[path.name]):
            raise IndexCorrupt(
                f"{path} is not what was built (checksum {found[:8]}…, not {expected[:8]}…): build the index again"
            )
        del self._unchecked[path.name]
        return True
