"""Crash reports: the reasons why workers ended. The dead letter of a poisoned job has the report of its last worker."""

import faulthandler
import fcntl
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from shoal.broker.broker import Broker
from shoal.contract.keys import Keys
from shoal.errors import ShoalError

log = logging.getLogger(__name__)

#: Time for which a report is kept in Redis, in seconds.
REPORT_TTL_S = 3_600

#: Largest number of characters of a report; the rest is dropped.
MAX_CHARS = 16_384

#: Longest wait for the end of a dead worker's process, which may still be writing its report, and the interval between
#: two looks at the report, in seconds.
MAX_END_S, LOOK_EVERY_S = 4.0, 0.05


class CrashReports:
    """The crash reports of a pool. A crashed worker leaves a file in `folder`; another worker copies it to Redis."""

    def __init__(self, broker: Broker, keys: Keys, folder: Path | None = None):
        self._broker = broker
        self._keys = keys
        self._folder = folder

    def write(self, worker_id: str, summary: str, trace: str) -> None:
        """Write the report of a worker to Redis. The summary is one line."""
        report = f"{summary}\n{trace}"[:MAX_CHARS].encode(errors="replace")
        self._broker.execute("SET", self._keys.crash_report(worker_id), report, "EX", REPORT_TTL_S)

    def read(self, worker_id: str) -> str:
        """Wait until a dead worker's process has ended; return its report, summary first, or an empty text."""
        until = time.monotonic() + MAX_END_S
        self.forward_files()
        while self._folder and (self._folder / worker_id).exists() and time.monotonic() < until:
            time.sleep(LOOK_EVERY_S)
            self.forward_files()
        return (self._broker.execute("GET", self._keys.crash_report(worker_id)) or b"").decode(errors="replace")

    def forward_files(self) -> None:
        """Write the files of crashed workers to Redis and delete them. The files of living workers are locked."""
        for path in self._folder.glob("[!.]*") if self._folder else ():
            with suppress(OSError, ShoalError), path.open(errors="replace") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                summary, _, trace = file.read(MAX_CHARS).partition("\n")
                if summary:
                    log.warning("worker %s crashed: %s", path.name, summary)
                    self.write(path.name, summary, trace)
                path.unlink()

    @contextmanager
    def recorded(self, worker_id: str) -> Iterator[TextIO]:
        """Report an exception or a crash in the `with` block; yield the file that gets the traceback of a crash."""
        file = self._open(worker_id)
        faulthandler.enable(file)
        try:
            yield file
        except BaseException as error:
            summary = f"{type(error).__name__}: {error}".partition("\n")[0]
            with suppress(ShoalError):
                self.write(worker_id, summary, "".join(traceback.format_exception(error)))
            raise
        finally:
            faulthandler.disable()
            if self._folder and file is not sys.stderr:
                (self._folder / worker_id).unlink(missing_ok=True)
                file.close()

    def _open(self, worker_id: str) -> TextIO:
        """Open the worker's file, locked before it gets its name, because an unlocked file belongs to a dead worker."""
        if self._folder is None:
            return sys.stderr
        path = self._folder / f".{worker_id}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
            fcntl.flock(file, fcntl.LOCK_EX)
            os.rename(path, self._folder / worker_id)
        except OSError as error:
            log.debug("crashes are traced to standard error, because %s cannot be used: %s", self._folder, error)
            return sys.stderr
        return file
