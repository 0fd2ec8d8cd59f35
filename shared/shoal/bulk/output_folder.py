"""The output folder of a bulk embedding: locked for one process, and whole at any moment."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from shoal.bulk.manifest import BAD_ROWS, MANIFEST, Manifest, part_name
from shoal.bulk.part_file import SUFFIXES, PartFile, open_part
from shoal.errors import DiskFull, FileError, FolderBusy, InvalidRequest


class OutputFolder:
    """A folder of vectors that this process alone writes.

    A file is written under a name that begins with a dot and renamed once it is on disk, the manifest after all that
    it names. So a process that ends at any moment leaves finished parts and what the next run overwrites.
    """

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Make the folder if it is missing, and hold its lock until the end of the `with`.

        Raises InvalidRequest if the folder holds other files, and FolderBusy while another process holds its
        lock. An OSError in the `with` becomes DiskFull or FileError.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                folder = cls(path)
                folder._refuse_others()
                yield folder
            finally:
                os.close(lock)
        except BlockingIOError as error:
            raise FolderBusy(
                f"another process writes into {path}: wait until it has ended, or name another folder"
            ) from error
        except OSError as error:
            if error.errno not in DiskFull.ERRNOS:
                name, why = error.filename or path, error.strerror or error
                raise FileError(f"{name} cannot be used ({why}): check its name and permissions") from error
            raise DiskFull(
                f"no room to write {path} ({error.strerror}): free some space and start the same again; "
                "its finished parts are kept"
            ) from error

    def has_manifest(self) -> bool:
        """Return True if a run has begun here."""
        return (self.path / MANIFEST).exists()

    def save(self, manifest: Manifest) -> None:
        """Replace the manifest."""
        scratch = self.path / f".{MANIFEST}"
        with scratch.open("wb") as file:
            file.write(manifest.pack())
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(self.path / MANIFEST)
        self._sync()

    @contextmanager
    def part(self, number: int, format_name: str, dimension: int) -> Iterator[PartFile]:
        """Open the files of a part; without `finish_part` before the end of the `with`, nothing is left of them."""
        names = [f"{part_name(number)}{suffix}" for suffix in SUFFIXES[format_name]]
        scratch = [self.path / f".{name}" for name in names]
        try:
            part = open_part(format_name, scratch, dimension)
            try:
                yield part
            finally:
                part.close()
        finally:
            for path in scratch:
                path.unlink(missing_ok=True)

    def finish_part(self, part: PartFile) -> tuple[dict[str, str], dict[str, int]]:
        """Give the files of a part their names once they are on disk; return their checksums and sizes by name."""
        part.finish()
        part.close()
        checksums, sizes = {}, {}
        for scratch in part.paths:
            name = scratch.name.removeprefix(".")
            with scratch.open("rb") as file:
                os.fsync(file.fileno())
                checksums[name] = hashlib.file_digest(file, "sha256").hexdigest()
                sizes[name] = file.tell()
            scratch.rename(self.path / name)
        self._sync()
        return checksums, sizes

    def _refuse_others(self) -> None:
        """Raise InvalidRequest for a folder without a manifest that holds files which a run does not leave behind."""
        if self.has_manifest():
            return
        for entry in self.path.iterdir():
            if not entry.name.startswith(".") and entry.name != BAD_ROWS:
                raise InvalidRequest(
                    f"{self.path} holds other files, such as {entry.name}, and no {MANIFEST}: name a new folder"
                )

    def _sync(self) -> None:
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
