"""The folder in which a version is built. One build at a time uses it, and a killed build leaves it behind.

The next build starts again, but reuses the outputs of texts that a killed build has encoded: see `KeptFiles`.
"""

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Self

from shoal.errors import (
    BadDocument,
    Cancelled,
    DiskFull,
    FileError,
    IndexCorrupt,
    IndexMismatch,
    InvalidRequest,
    ModelMismatch,
    TooLarge,
)
from shoal.process.durable_file import locked, replace_file
from shoal.task_progress import Report, TaskProgress

#: The name of this folder in the folder of the index.
SCRATCH = ".building"

#: The suffix of a file that records how many bytes of other files are kept for the next build.
KEPT = ".kept.json"

#: Number of texts after which a build syncs their outputs to the disk. A build that is started again encodes at most
#: this many texts again. It is a multiple of the number of texts that encoders encode at a time, so that the same texts
#: are encoded together after an interruption.
SYNC_EVERY = 4_096

#: Errors after which the folder of a build is removed: the build was cancelled, its source or arguments are wrong, or
#: files are damaged. Damaged files may raise Python's own errors. After any other error, the kept files stay.
_FINAL_ERRORS = (
    *(Cancelled, BadDocument, IndexMismatch, ModelMismatch, IndexCorrupt, InvalidRequest, TooLarge),
    *(ValueError, LookupError, TypeError),
)


@dataclass(slots=True)
class BuildState:
    """The state of a build in `folder`: its counts, and the name of its `version`. `report_to` gets its progress.

    `num_rows` counts the rows of the source, and `count` the rows of the index, which are `num_documents` documents or
    their chunks. Changes of the index are folded in up to `changes_through`; `num_lost` counts gaps and unreadable
    entries of their log. If `ids_are_positions`, the source has no column of ids. There are `num_tokens` token vectors.
    """

    folder: Path
    report_to: Report
    version: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}")
    num_rows: int = 0
    num_bad: int = 0
    first_bad: tuple[str, ...] = ()
    count: int = 0
    num_documents: int = 0
    changes_through: str = ""
    num_changed: int = 0
    num_lost: int = 0
    num_tokens: int = 0
    ids_are_positions: bool = False

    def counts(self) -> dict[str, Any]:
        """Return the name of the version, and the counts that the manifest and the build's result also have."""
        names = ("version", "count", "num_documents", "num_bad", "num_changed", "num_lost")
        return {name: getattr(self, name) for name in names}

    def report(self, step: str, fraction: float | None = 1.0, rows: int | None = None) -> None:
        """Report the `step`, the `fraction` of it that is done, and the number of `rows`; by default, `num_rows`."""
        num_rows = self.num_rows if rows is None else rows
        self.report_to(TaskProgress(num_rows, self.num_bad, self.first_bad, fraction, step))


class KeptFiles:
    """Files of a build to which outputs of texts are added. Saved outputs outlive an interruption of the build.

    A build of the same `owner`, a plain value, continues after the saved outputs; another build gets empty files.
    """

    def __init__(self, folder: Path, name: str, owner: Any, names: Sequence[str]):
        self._path, self._owner = folder / f"{name}{KEPT}", owner
        if not (sizes := self._read([folder / one for one in names])):
            self._path.unlink(missing_ok=True)  # another build of the old owner must not read these files
        self._num_unsaved = 0
        self._files: dict[str, BinaryIO] = {}
        for one in names:
            file = self._files[one] = (folder / one).open("r+b" if sizes else "wb")
            file.truncate(sizes.get(one, 0))
            file.seek(0, os.SEEK_END)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def __getitem__(self, name: str) -> BinaryIO:
        return self._files[name]

    def add(self, num_texts: int, outputs: Mapping[str, bytes], is_last: bool) -> None:
        """Append the outputs of some texts, and sync them after each `SYNC_EVERY` texts and the last ones."""
        for name, data in outputs.items():
            self._files[name].write(data)
        self._num_unsaved += num_texts
        if self._num_unsaved < SYNC_EVERY and not is_last:
            return
        self._num_unsaved = 0
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {name: file.tell() for name, file in self._files.items()}
        replace_file(self._path, json.dumps({"owner": self._owner, "sizes": sizes}))

    def _read(self, paths: Sequence[Path]) -> dict[str, int]:
        """Return the sizes of the files at the last sync of a build of this owner; nothing if there was none."""
        with suppress(OSError, ValueError, TypeError, LookupError):
            saved = json.loads(self._path.read_text("utf-8"))
            if saved["owner"] == self._owner and all(
                path.stat().st_size >= saved["sizes"][path.name] for path in paths
            ):
                return {path.name: saved["sizes"][path.name] for path in paths}
        return {}


@contextmanager
def open_scratch(out: Path) -> Iterator[Path]:
    """Yield the folder for the next version of the index in `out`.

    The folder contains only kept files, and no other build uses it. It is removed after an error that ends the build
    for good. Raises IndexBusy while another build holds the folder, and DiskFull if there is no room for the build.
    """
    folder = out / SCRATCH
    try:
        out.mkdir(parents=True, exist_ok=True)
        with locked(out, work="build"):
            try:
                _begin(folder)
                yield folder
            except _FINAL_ERRORS:
                shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):  # the folder has other files
                    out.rmdir()
                raise
    except OSError as error:
        if error.errno not in DiskFull.ERRNOS:
            raise
        raise DiskFull(
            f"no room to build an index in {out} ({error.strerror}): free some space and start the build again, which "
            "then goes on; an index there is unchanged"
        ) from error


def _begin(folder: Path) -> None:
    """Empty the folder except for its kept files."""
    if folder.is_symlink():
        raise FileError(f"{folder} is a link, but a build empties this folder: remove the link")
    folder.mkdir(exist_ok=True)
    kept = set()
    for path in folder.glob(f"*{KEPT}"):
        with suppress(ValueError, TypeError, LookupError):
            kept |= {path.name, *json.loads(path.read_text("utf-8"))["sizes"]}
    for path in folder.iterdir():
        if path.name not in kept:
            path.unlink()
