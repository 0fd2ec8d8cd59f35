"""The thread of a worker that has the indexes of the store copied to this machine."""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from shoal.errors import Cancelled, FileError
from shoal.settings import Settings
from shoal_workers.index.store.copies import copied_names, save_errors
from shoal_workers.index.store.store_process import LOOK_EVERY_S, run_store_process

log = logging.getLogger(__name__)

#: The file whose lock the worker of this machine has that copies; the others wait until it ends.
LOCK = ".lock"

#: Pause before the process that copies is started again, in seconds.
RESTART_AFTER_S = 10.0

#: Time without a failure after which the next one is logged although it is the same.
QUIET_S = 120.0


@contextmanager
def kept_copies(settings: Settings) -> Iterator[None]:
    """Keep the copies of the store's indexes up to date while the context lasts; do nothing if there is no store.

    Raises FileError if there can be no folder for the copies.
    """
    if not settings.index_store:
        yield
        return
    try:
        settings.index_copies_folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(settings.index_copies_folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise FileError(
            f"{settings.index_copies_folder} cannot be written ({error.strerror}), but copies of the indexes in the "
            "store go there: check its permissions, or set SHOAL_HOME"
        ) from error
    stopping = threading.Event()
    thread = threading.Thread(target=_keep, args=(settings, lock, stopping), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        os.close(lock)


def _keep(settings: Settings, lock: int, stopping: threading.Event) -> None:
    """Run the process that copies whenever this worker has the lock, which that process holds with it."""

    def check_stop() -> None:
        if stopping.is_set():
            raise Cancelled("the worker stops")

    while not _takes(lock):
        if stopping.wait(LOOK_EVERY_S):
            return
    folder, message, failed_at = settings.index_copies_folder, "", 0.0
    while not stopping.is_set():
        try:
            run_store_process(settings, "copy", report=check_stop, keeps_open=[lock])
        except Cancelled:
            return
        except Exception as error:  # any: without this thread, no new version would ever be served
            if str(error) != message or time.monotonic() - failed_at > QUIET_S:
                log.warning("%s; the copies of indexes are served", error)
            message, failed_at = str(error), time.monotonic()
            with suppress(OSError):
                save_errors(folder, dict.fromkeys(copied_names(folder), message))
        stopping.wait(RESTART_AFTER_S)


def _takes(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
