"""Last words: what a worker could still say of its end, for whoever buries the job that it died of.

A worker that sees its end coming tells Redis. One that crashes in native code leaves its traceback in a file, which
the next worker that starts on the machine, or buries a job there, passes on.
"""

import faulthandler
import fcntl
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from shoal.broker.broker import Broker
from shoal.errors import ShoalError
from shoal.keys import Keys

log = logging.getLogger(__name__)

#: How long last words are kept in Redis.
WORDS_TTL_S = 3_600

#: How much of them is kept.
MAX_CHARS = 16_384


class CrashReports:
    """The last words of a pool's workers; files are in `folder`, if there is one that can be written to."""

    def __init__(self, broker: Broker, keys: Keys, folder: Path | None = None):
        self._broker = broker
        self._keys = keys
        self._folder = folder

    def say(self, worker_id: str, summary: str, trace: str) -> None:
        """Keeps what a worker says; the summary is one line."""
        words = f"{summary}\n{trace}"[:MAX_CHARS].encode(errors="replace")
        self._broker.execute("SET", self._keys.words(worker_id), words, "EX", WORDS_TTL_S)

    def of(self, worker_id: str) -> str:
        """What the worker said, its summary first; empty if it ended without a word."""
        self.pass_on()
        return (self._broker.execute("GET", self._keys.words(worker_id)) or b"").decode(errors="replace")

    def pass_on(self) -> None:
        """Passes on what crashed workers left in their files; the lock of a living one's file is held."""
        for path in self._folder.glob("[!.]*") if self._folder else ():
            with suppress(OSError), path.open(errors="replace") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                summary, _, trace = file.read(MAX_CHARS).partition("\n")
                if summary:
                    log.warning("worker %s crashed: %s", path.name, summary)
                    self.say(path.name, summary, trace)
                path.unlink()

    @contextmanager
    def recorded(self, worker_id: str) -> Iterator[TextIO]:
        """Has crashes traced to the worker's file, or to standard error if it can have none; says exceptions."""
        file = self._open(worker_id)
        faulthandler.enable(file)
        try:
            yield file
        except BaseException as error:
            summary = f"{type(error).__name__}: {error}".partition("\n")[0]
            with suppress(ShoalError):
                self.say(worker_id, summary, "".join(traceback.format_exception(error)))
            raise
        finally:
            faulthandler.disable()
            if self._folder and file is not sys.stderr:
                (self._folder / worker_id).unlink()
                file.close()

    def _open(self, worker_id: str) -> TextIO:
        """The worker's file, which has its name only once it is locked: then nobody takes it for one of the dead."""
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
