"""The open file of a source, and the rules for which paths may be read."""

import io
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from shoal.errors import BadDocument, InvalidRequest, PathNotAllowed
from shoal.job_folders import JOBS
from shoal.settings import Settings

#: Number of bytes that are read at a time.
BLOCK_BYTES = 256 * 1024

#: Beyond the first `FREE_BYTES` of rows, each byte of a file may unpack to at most `MAX_EXPANSION` bytes of rows,
#: because a KiB of .parquet can unpack to a TiB. Each row counts `ROW_BYTES` more than its values.
MAX_EXPANSION, FREE_BYTES, ROW_BYTES = 250, 2**30, 150


@dataclass(frozen=True, slots=True)
class SourceRules:
    """Rules for the path of a source, from the settings of the process that opens it.

    A link below the `root_folders` must lead below one of the `root_folders`. The folder of `uploads` and all folders
    below it are refused.
    """

    root_folders: Collection[Path] = ()
    uploads: Path | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the rules in the settings."""
        return cls(settings.root_folders(), (settings.files_folder / JOBS).resolve())

    def is_closed(self, folder: Path | str) -> bool:
        """Return True for the folder of uploads, and for any folder below it."""
        return self.uploads is not None and Path(folder).resolve().is_relative_to(self.uploads)


class SourceFile:
    """An open file: a stream of its bytes, compressed or not, its size, and the time of its last change in nanoseconds.

    `fraction` returns the share that was read. A reader that does not read from beginning to end replaces this
    function.
    """

    def __init__(self, stream: "io.BufferedReader[Any]", size_bytes: int, modified_ns: int):
        self.stream = stream
        self.size_bytes = size_bytes
        self.modified_ns = modified_ns
        self.fraction: Callable[[], float | None] = self._fraction_of_bytes
        self._num_bytes = 0

    def count_decompressed(self, num_rows: int, num_bytes: int, where: str) -> None:
        """Count rows that a reader has unpacked. Raises BadDocument if they are too large for the file's size."""
        self._num_bytes += num_rows * ROW_BYTES + num_bytes
        if self._num_bytes > max(FREE_BYTES, MAX_EXPANSION * self.size_bytes):
            raise BadDocument(
                f"{where}: the {self.size_bytes:,} bytes of the file become over {self._num_bytes:,} bytes of rows, "
                f"more than {MAX_EXPANSION} times as many: if they are right, unpack the file, or cut it into several"
            )

    def _fraction_of_bytes(self) -> float | None:
        if self.stream.closed:
            return 1.0
        return min(self.stream.tell() / self.size_bytes, 1.0) if self.size_bytes else None


@contextmanager
def open_file(path: str, rules: SourceRules) -> Iterator[SourceFile]:
    """Open a file. Raises InvalidRequest, and PathNotAllowed if a link leads from below a root out of the roots."""
    try:
        with io.BufferedReader(io.FileIO(path), BLOCK_BYTES) as stream:
            named, roots = Path(os.path.abspath(path)), [folder.resolve() for folder in rules.root_folders]
            # Someone may put a link below a root at any time. Only Linux shows where an open file is.
            if sys.platform == "linux" and any(named.is_relative_to(root) for root in roots):
                found = Path(os.readlink(f"/proc/self/fd/{stream.fileno()}"))
                if not any(found.is_relative_to(root) for root in roots):
                    raise PathNotAllowed(
                        f"{path} is a link to a file that is below none of the folders that long jobs may use: name "
                        "that file itself, or add its folder to SHOAL_ROOTS"
                    )
            about = os.fstat(stream.fileno())
            yield SourceFile(stream, about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be read ({error.strerror or error}): check its name and permissions"
        ) from error
