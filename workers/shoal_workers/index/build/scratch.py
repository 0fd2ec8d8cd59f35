"""The folder in which a version is built. One build at a time uses it, and it stays if the build is killed."""

import fcntl
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.errors import (
    BadDocument,
    Cancelled,
    DiskFull,
    FileError,
    IndexBusy,
    IndexCorrupt,
    IndexMismatch,
    InvalidRequest,
    ModelMismatch,
    TooLarge,
)
from shoal.task_progress import TaskProgress
from shoal_workers.index.files.durable_file import replace_file

log = logging.getLogger(__name__)

#: The folder inside the folder of the index, and the file in it with the state of the build.
SCRATCH, STATE = ".building", "state.json"

#: Errors after which the folder of a build is removed: the build was cancelled, its source or its arguments are wrong,
#: or files of an interrupted build are damaged, which raises Python's own errors. A build that was
#: killed, or ended with any other error, goes on when it is started again.
_FINAL_ERRORS = (
    *(Cancelled, BadDocument, IndexMismatch, ModelMismatch, IndexCorrupt, InvalidRequest, TooLarge),
    *(ValueError, LookupError, TypeError),
)


@dataclass(slots=True)
class BuildState:
    """The state of a build, saved in its folder.

    A build goes on with the work of an earlier one if both have the same `arguments`, which are plain values.
    `num_rows` counts the rows of the source, and `count` the rows of the index, which are `num_documents` documents or
    their chunks; `count` is 0 until all rows are written. Changes of the index are folded in up to `changes_through`,
    which is empty until they are written; `num_lost` counts gaps and unreadable entries of their log. `num_embedded`
    texts are encoded and safe on the disk, with `num_weights` weights of learned words; so are
    `num_tokens` token vectors of `num_token_texts` texts. If `ids_are_positions`, the
    source has no column of ids.
    """

    arguments: dict[str, Any]
    version: str
    process: int
    since: str
    num_rows: int = 0
    num_bad: int = 0
    first_bad: tuple[str, ...] = ()
    count: int = 0
    num_documents: int = 0
    changes_through: str = ""
    num_changed: int = 0
    num_lost: int = 0
    num_embedded: int = 0
    num_weights: int = 0
    num_token_texts: int = 0
    num_tokens: int = 0
    ids_are_positions: bool = False

    def counts(self) -> dict[str, Any]:
        """Return the version and the numbers that the manifest and the result of the build share with the state."""
        names = ("version", "count", "num_documents", "num_bad", "num_changed", "num_lost")
        return {name: getattr(self, name) for name in names}

    def progress(self, step: str, fraction: float) -> TaskProgress:
        """Return the progress of a build: its counts, the `step`, and the `fraction` of the step that is done."""
        return TaskProgress(self.num_rows, self.num_bad, self.first_bad, fraction, step)

    def save(self, folder: Path) -> None:
        """Write the state into the folder of the build, in one step."""
        replace_file(folder / STATE, json.dumps(asdict(self)))


@contextmanager
def open_scratch(out: Path, arguments: dict[str, Any]) -> Iterator[tuple[Path, BuildState]]:
    """Give the folder for the next version of the index in `out`, locked, and the state of the build in it.

    The folder is removed after an error that ends the build for good. Raises IndexBusy while another build holds the
    folder, and DiskFull if there is no room for the build.
    """
    lock = None
    folder = out / SCRATCH
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
        yield folder, _begin(folder, arguments)
    except OSError as error:
        if error.errno not in DiskFull.ERRNOS:
            raise
        raise DiskFull(
            f"no room to build an index in {out} ({error.strerror}): free some space and start the build again, which "
            "then goes on; an index there is unchanged"
        ) from error
    except _FINAL_ERRORS:
        if lock is not None and _is_at(lock, folder):
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # the folder has other files
                out.rmdir()
        raise
    finally:
        if lock is not None:
            os.close(lock)


def remove_interrupted(out: Path, is_unwanted: Callable[[str], bool]) -> None:
    """Remove the folder of an interrupted build of the index in `out`, if `is_unwanted` returns True for its key."""
    folder = out / SCRATCH
    key = _key_in(folder)
    if not key or not is_unwanted(key):
        return
    with suppress(IndexBusy):
        lock = _lock(folder)
        try:
            if _key_in(folder) in (key, None):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
    with suppress(OSError):  # the folder has other files
        out.rmdir()


def _lock(folder: Path) -> int:
    """Return a descriptor of the folder that holds a lock on it; the system releases the lock when the process ends."""
    while True:
        with suppress(FileExistsError):
            folder.mkdir()
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:  # another build has ended at this moment and moved the folder
            continue
        except OSError as error:
            if folder.is_symlink():
                raise FileError(f"{folder} is a link, but a build empties this folder: remove the link") from error
            raise
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            by = ""
            if found := _read_state(folder):
                by = f", by process {found.process} since {found.since} from {found.arguments.get('source')}"
            raise IndexBusy(
                f"{folder.parent} is being built already{by}: wait until that build has ended, or stop it"
            ) from None
        if _is_at(lock, folder):
            return lock
        os.close(lock)


def _is_at(lock: int, folder: Path) -> bool:
    """Return True if `folder` is still the path of the folder that was opened as `lock`."""
    try:
        return os.path.samestat(os.fstat(lock), folder.lstat())
    except FileNotFoundError:
        return False


def _begin(folder: Path, arguments: dict[str, Any]) -> BuildState:
    """Return the state of the interrupted build if it goes on; otherwise, empty the folder and return a new state."""
    now = datetime.now(UTC)
    state = _read_state(folder)
    if state is None or state.arguments != arguments:
        if state and state.count:
            log.warning(
                "%s: of an unfinished build, %s vectors of %s documents from %s are removed, as another build begins",
                *(folder.parent, f"{state.num_embedded:,}", f"{state.count:,}", state.arguments.get("source")),
            )
        for path in folder.iterdir():
            path.unlink()
        state = BuildState(arguments, f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}", 0, "")
    state.process, state.since = os.getpid(), f"{now:%Y-%m-%dT%H:%M:%SZ}"
    state.save(folder)
    return state


def _read_state(folder: Path) -> BuildState | None:
    try:
        state = BuildState(**json.loads((folder / STATE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    state.first_bad = tuple(state.first_bad)
    return state if isinstance(state.arguments, dict) else None


def _key_in(folder: Path) -> str | None:
    state = _read_state(folder)
    return str(state.arguments.get("key", "")) if state else None
