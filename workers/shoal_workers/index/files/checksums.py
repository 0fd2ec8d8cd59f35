"""The checksums of a version's files, and their comparison."""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from shoal.errors import Cancelled, IndexCorrupt

#: Size in bytes from which a file counts as large. Opening a version does not compare the checksums of large files,
#: because that would take seconds.
LARGE_BYTES = 2**24

#: Number of bytes of a file that are read and hashed at a time.
_PIECE_BYTES = 2**20


class FileCheck:
    """The comparison of a version's files with their checksums. Not thread-safe."""

    def __init__(self, version: Path, checksums: Mapping[str, str]):
        self._version = version
        self._unchecked = dict(checksums)

    @property
    def is_done(self) -> bool:
        """True once all files have been compared with their checksums."""
        return not self._unchecked

    def check(self, tick: Callable[[], None] = lambda: None, *, only_small: bool = False) -> None:
        """Compare all files, or only files that are not large; call `tick` often.

        Raises IndexCorrupt for a wrong or unreadable file.
        """
        for path in [self._version / name for name in self._unchecked]:
            try:
                if path.stat().st_size < LARGE_BYTES or not only_small:
                    self._compare(path, tick)
            except OSError as error:
                raise IndexCorrupt(f"{path} cannot be read ({error.strerror}): build the index again") from error

    def check_rest(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Compare the remaining files, and stop when `is_wanted`, which is called often, returns False.

        Raises IndexCorrupt for a wrong file, and OSError for a file that cannot be read now.
        """

        def tick() -> None:
            if not is_wanted():
                raise Cancelled("the files need no check any more")

        with suppress(Cancelled):
            for name in list(self._unchecked):
                self._compare(self._version / name, tick)

    def _compare(self, path: Path, tick: Callable[[], None]) -> None:
        if (found := checksum(path, tick)) != (expected := self._unchecked[path.name]):
            raise IndexCorrupt(
                f"{path} is not what was built (checksum {found[:8]}…, not {expected[:8]}…): build the index again, or "
                "publish another version"
            )
        del self._unchecked[path.name]


def checksum(path: Path, tick: Callable[[], None] = lambda: None) -> str:
    """Return the SHA-256 of a file in hexadecimal digits, and call `tick` often."""
    digest, piece = hashlib.sha256(), memoryview(bytearray(_PIECE_BYTES))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(piece):
            tick()
            digest.update(piece[:size])
    return digest.hexdigest()
