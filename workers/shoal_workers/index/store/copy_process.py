"""Uploads to the store of indexes, and the process that copies indexes from there.

A worker neither loads the store's packages nor hangs with the store, because it starts `python -m
shoal_workers.index.store.copy_process PARENT`, with the settings in the environment. If the store hangs, an alarm ends
the process. On each machine, one worker at a time has a thread that runs this process.
"""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.errors import FileError, IndexCorrupt, ShoalError, Unavailable
from shoal.process import logs
from shoal.process.system_limits import die_with_parent
from shoal.settings import Settings
from shoal_workers.index.store.local_copies import Copies
from shoal_workers.index.store.store import IndexStore, check_protocol, upload

log = logging.getLogger("shoal_workers.index.store.copy_process")  # also where this module is `__main__`

#: Interval at which copies are compared with the store, in seconds.
LOOK_EVERY_S = 2.0

#: Longest time without a step, in seconds. After it, the store counts as hanging, and the process ends.
MAX_SILENCE_S = 300.0

#: Niceness of the process that copies, so that the workers beside it go first.
NICENESS = 10

#: The worker that copies holds a lock on this file; the machine's other workers wait until that worker ends.
LOCK = ".lock"

#: Pause before the process that copies is started again, in seconds.
RESTART_AFTER_S = 10.0


def check_store(settings: Settings) -> None:
    """Raise MissingExtra or BadSetting if the settings name a store that cannot be used. The store is not contacted."""
    if settings.index_store:
        check_protocol(settings.index_store)


def upload_index(
    settings: Settings, folder: Path, report: Callable[[], None] = lambda: None, *, is_anew: bool = False
) -> bool:
    """Upload the index in `folder` to the store; return False if the store is not for this index.

    The store is for indexes in `index_home`. `store.upload` describes `is_anew`. `report` is called often, and may
    raise to stop the upload. Raises FileError, Unavailable and IndexCorrupt.
    """
    if not settings.index_store or folder.absolute().parent.resolve() != settings.index_home_folder.resolve():
        return False
    logging.disable()  # the store's packages log addresses, which may contain a password
    try:
        upload(folder, IndexStore.open(settings.index_store, report), is_anew=is_anew)
    except (FileError, Unavailable, IndexCorrupt) as error:
        raise type(error)(f"{error.message}; {folder} is changed, and the store is not yet") from None
    finally:
        logging.disable(logging.NOTSET)
    return True


@contextmanager
def kept_copies(settings: Settings) -> Iterator[None]:
    """Keep the copies of the store's indexes up to date; do nothing without a store. Raises FileError."""
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
    """Run the process that copies whenever this worker gets the lock, which the process then holds too."""
    command = [sys.executable, "-m", "shoal_workers.index.store.copy_process", str(os.getpid())]
    while not stopping.is_set():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | settings.to_environment(),
                pass_fds=[lock],
                process_group=0,  # Ctrl-C reaches the parent process alone, which ends this one
            )
        except OSError:  # another worker has the lock, or the system cannot start a process
            stopping.wait(LOOK_EVERY_S)
            continue
        while process.poll() is None and not stopping.wait(0.2):
            pass
        process.kill()
        code = process.wait()
        if not stopping.is_set():
            why = f": the store has not answered for {MAX_SILENCE_S:g} s" if code == -signal.SIGALRM else ""
            log.warning("the process that copies indexes ended with exit code %d, and is started again%s", code, why)
            stopping.wait(RESTART_AFTER_S)


def main(parent: str) -> None:
    """Copy indexes without end. No text of a library is printed, because it may contain a password."""
    die_with_parent(signal.SIGKILL, int(parent))
    settings = Settings.from_environment()
    logs.configure(settings, "critical")
    logging.getLogger("shoal_workers").setLevel(settings.log_level.upper())
    os.nice(NICENESS)

    def tick() -> None:
        signal.setitimer(signal.ITIMER_REAL, MAX_SILENCE_S)

    tick()
    fault = ""
    try:
        copies = Copies(IndexStore.open(settings.index_store, tick), settings.index_copies_folder)
        while True:
            try:
                copies.look(time.monotonic())
                fault = ""
            except ShoalError as error:
                if error.message != fault:
                    log.warning("%s; the copies of indexes are served", error.message)
                fault = error.message
            tick()
            time.sleep(LOOK_EVERY_S)
    except Exception as error:
        log.error("the process that copies indexes failed: %s", logs.places(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(1)  # a normal exit would wait for library threads that hang
