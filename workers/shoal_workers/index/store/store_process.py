"""The process that uses the store of indexes, so that no other process loads the store's packages or hangs with it.

It is started as `python -m shoal_workers.index.store.store_process PARENT COMMAND …`, with the settings in the
environment. After an error, it prints the error in one line and ends. If the store hangs, an alarm ends it. On each
machine, one worker at a time has a thread that runs this process to copy indexes.
"""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from shoal.errors import Cancelled, FileError, IndexCorrupt, Internal, ShoalError, Unavailable, parse
from shoal.process import logs
from shoal.process.system_limits import die_with_parent
from shoal.settings import Settings
from shoal_workers.index.store.local_copies import Copies
from shoal_workers.index.store.store import IndexStore, check_protocol, upload

log = logging.getLogger(__name__)

#: Interval at which copies are compared with the store, in seconds.
LOOK_EVERY_S = 2.0

#: Longest time without a step, in seconds. After it, the store counts as hanging, and the process ends.
MAX_SILENCE_S = 300.0

#: Time between two calls of `report`, in seconds.
REPORT_EVERY_S = 0.2

#: Niceness of the process that copies, so that the workers beside it go first.
NICENESS = 10

#: The worker that copies holds a lock on this file; the machine's other workers wait until that worker ends.
LOCK = ".lock"

#: Pause before the process that copies is started again, in seconds.
RESTART_AFTER_S = 10.0


def check_store(settings: Settings) -> None:
    """Raise MissingExtra or BadSetting if the settings name a store that cannot be used. The store is not contacted."""
    if settings.index_store:
        run_store_process(settings, "check")


def upload_index(
    settings: Settings, folder: Path, report: Callable[[], None] = lambda: None, *, is_anew: bool = False
) -> bool:
    """Upload the index in `folder` to the store; return False if the store is not for this index.

    The store is for indexes in `index_home`. `store.upload` describes `is_anew`. `report` is called often, and may
    raise to stop the upload. Raises FileError, Unavailable and IndexCorrupt.
    """
    if not settings.index_store or folder.absolute().parent.resolve() != settings.index_home_folder.resolve():
        return False
    try:
        run_store_process(settings, "renew" if is_anew else "upload", folder.name, report=report)
    except (FileError, Unavailable, IndexCorrupt, Internal) as error:
        raise type(error)(f"{error.message}; {folder} is changed, and the store is not yet") from None
    return True


def run_store_process(
    settings: Settings,
    *words: str,
    report: Callable[[], None] = lambda: None,
    keeps_open: Sequence[int] = (),
    max_silence_s: float = MAX_SILENCE_S,
) -> None:
    """Run the process to its end, and call `report` often; an error that `report` raises ends the process.

    The process keeps the descriptors `keeps_open` open. Raises the error that the process reports, and Unavailable if
    it hangs.
    """
    command = [sys.executable, "-m", "shoal_workers.index.store.store_process", str(os.getpid()), str(max_silence_s)]
    with TemporaryFile() as output:
        process = subprocess.Popen(
            [*command, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            env=os.environ | settings.to_environment(),
            pass_fds=keeps_open,
            process_group=0,  # Ctrl-C reaches the parent process alone, which ends this one
        )
        try:
            while process.returncode is None:
                report()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(REPORT_EVERY_S)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        last_line = output.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
    if process.returncode == -signal.SIGALRM:
        raise Unavailable(f"the store of indexes has not answered for {max_silence_s:g} s: check its address")
    if code := process.returncode:
        raise parse(last_line) or Internal(f"the process that uses the store ended with exit code {code}: see the log")


def main(parent: str, max_silence_s: str, command: str, *names: str) -> int:
    """Run the command and return the exit code; print no text of a library, which may contain a password."""
    die_with_parent(signal.SIGKILL, int(parent))
    settings = Settings.from_environment()
    logs.configure(settings, "critical")
    logging.getLogger("shoal_workers").setLevel(settings.log_level.upper())

    def tick() -> None:
        signal.setitimer(signal.ITIMER_REAL, float(max_silence_s))

    tick()
    try:
        if command == "check":
            check_protocol(settings.index_store)
            return 0
        store = IndexStore.open(settings.index_store, tick)
        if command != "copy":
            upload(settings.index_home_folder / names[0], store, is_anew=command == "renew")
            return 0
        os.nice(NICENESS)
        copies = Copies(store, settings.index_copies_folder)
        while True:
            copies.look(time.monotonic())
            tick()
            time.sleep(LOOK_EVERY_S)
    except ShoalError as error:
        print(error.line, flush=True)
    except Exception as error:
        log.error("the process that uses the store failed: %s", logs.places(error))
    return 1


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

    def check_stop() -> None:
        if stopping.is_set():
            raise Cancelled("the worker stops")

    message = ""
    while not stopping.is_set():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            run_store_process(settings, "copy", report=check_stop, keeps_open=[lock])
        except BlockingIOError:  # another worker copies
            stopping.wait(LOOK_EVERY_S)
        except Cancelled:
            return
        except Exception as error:  # any error, because without this thread no new version would be served
            if str(error) != message:
                log.warning("%s; the copies of indexes are served", error)
            message = str(error)
            stopping.wait(RESTART_AFTER_S)


if __name__ == "__main__":
    exit_code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # a normal exit would wait for library threads that hang
