"""The client of the process that reads documents, with the kinds of files and their limits."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from multiprocessing.connection import Connection, Pipe
from threading import Timer

from shoal.errors import MissingExtra
from shoal.process.closing import Closing
from shoal.process.extra import install_command

#: The kind of a file by the ending of its name.
KINDS = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".md", ".markdown"), "markdown"),
    ".pdf": "pdf",
}

#: Size limits of a file and of its text, in bytes.
MAX_FILE_BYTES, MAX_TEXT_BYTES = 256 * 2**20, 8 * 2**20

#: Largest amount of memory for reading a file, in bytes.
MAX_MEMORY_BYTES = 2**30

#: The package that a kind of file needs. The extra `documents` installs all of them.
PACKAGES = {"html": "selectolax", "pdf": "pypdf"}

#: Limits of processor time for a PDF file, which may have thousands of pages, and for any other file, in seconds.
MAX_PDF_S, MAX_OTHER_S = 120, 10

#: Seconds between two calls of `waiting` while a file is read.
WAITING_EVERY_S = 0.5

#: Longest wait for an answer, in seconds. After that, the process is killed, because a hostile file may control it.
ANSWER_S = 10.0

#: Longest message about a file, in characters.
MAX_ERROR_CHARS = 1_000


class UnreadableFile(Exception):
    """A file cannot be read. The message names the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of a file, and its title, which is "" if it has none."""

    text: str
    title: str = ""


class ReaderClient(Closing):
    """The client of a process that reads files one at a time. It starts the process for the first file.

    The end of a `with` block ends the process. Reading may use `pdf_s` seconds of processor time for a PDF file, and
    `other_s` for any other file.
    """

    def __init__(self, pdf_s: int = MAX_PDF_S, other_s: int = MAX_OTHER_S) -> None:
        self._limits = (str(pdf_s), str(other_s))
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection  # the connection to the process

    def read(self, kind: str, pieces: Iterable[bytes], waiting: Callable[[], object] = lambda: None) -> Extracted:
        """Return the text of a file that is given in pieces. `waiting` is called often, and may raise an error to stop.

        Raises UnreadableFile, and MissingExtra if the package for the kind is not installed.
        """
        if (package := PACKAGES.get(kind)) and not find_spec(package):
            raise MissingExtra(f"reading {kind} needs {package}; run: {install_command('documents')}")
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
        try:
            self._send(kind, pieces)
            while not self._connection.poll(WAITING_EVERY_S):
                waiting()
            answer = self._receive()
        except BaseException:
            self.close()
            raise
        if answer is None:
            raise UnreadableFile(
                f"the process that read it has ended (exit code {self.close()}): perhaps it takes over "
                f"{MAX_MEMORY_BYTES:,} bytes of memory or too much of the processor's time: save it anew, or leave it "
                "out"
            )
        fault, text, title = answer
        if fault:
            raise UnreadableFile(fault[:MAX_ERROR_CHARS])
        return Extracted(text, title)

    def close(self) -> int:
        """End the process. Return its exit code, which is negative after a signal, or 0 if there is no process."""
        process, self._process = self._process, None
        if process is None:
            return 0
        self._connection.close()
        process.kill()
        return process.wait()

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            arguments = [str(theirs.fileno()), str(os.getpid()), *self._limits]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", "shoal.extraction.reader_process", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # libraries print and log parts of files
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C goes only to the parent, which ends this process
            )

    def _send(self, kind: str, pieces: Iterable[bytes]) -> None:
        size = 0
        for piece in chain([kind.encode()], filter(None, pieces), [b""]):
            if (size := size + len(piece)) > MAX_FILE_BYTES + len(kind):
                raise UnreadableFile(f"it has over {MAX_FILE_BYTES:,} bytes, the limit of a file: cut it into several")
            with suppress(ConnectionError):  # the process has ended, and `_receive` will notice it
                self._connection.send_bytes(piece)

    def _receive(self) -> list[str] | None:
        """Return the error of the file, its text and its title, or None if the process has ended."""
        limit = Timer(ANSWER_S, self._process.kill if self._process else bool)
        limit.start()
        try:
            return [self._connection.recv_bytes(MAX_TEXT_BYTES).decode(errors="replace") for _ in range(3)]
        except (EOFError, OSError):
            return None
        finally:
            limit.cancel()
            limit.join()
