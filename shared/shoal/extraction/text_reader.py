"""The side of the reader process that sends it files and gets their texts."""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

from shoal.errors import MissingExtra
from shoal.extraction.kinds import (
    MAX_FILE_BYTES,
    MAX_OTHER_S,
    MAX_PDF_S,
    MAX_TEXT_BYTES,
    PACKAGES,
    Extracted,
    UnreadableFile,
)
from shoal.process.extra import install_command

#: Interval at which a caller hears that a file is still being read, in seconds.
WAITING_EVERY_S = 0.5

#: Longest time from the end of the answers to that of the process, in seconds.
ENDS_WITHIN_S = 10.0

#: Longest answer: JSON has up to six bytes for each of a text.
MAX_ANSWER_BYTES = 6 * MAX_TEXT_BYTES + 2**20


class TextReader:
    """A process that reads files, one at a time, and is started when there is one. Closed at the end of a `with`.

    A PDF file takes at most `pdf_s` of the processor's time, and any other `other_s`, in seconds.
    """

    def __init__(self, pdf_s: int = MAX_PDF_S, other_s: int = MAX_OTHER_S) -> None:
        self._limits = (str(pdf_s), str(other_s))
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, kind: str, pieces: Iterable[bytes], waiting: Callable[[], object] = lambda: None) -> Extracted:
        """Return the text of a file of a kind, given in pieces. `waiting` is called often, and may raise to end this.

        Raises UnreadableFile, and MissingExtra if the package for the kind is not installed.
        """
        check_installed(kind)
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = _start(self._limits)
        try:
            answer = _ask(self._process, kind, pieces, waiting)
        except BaseException:
            self.close()
            raise
        if answer is None:
            raise UnreadableFile(_reason(self._exit_code()))
        return _extracted(answer)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process:
            process.kill()
            process.wait()
            _close_pipes(process)

    def _exit_code(self) -> int:
        """Return the exit code of the process, which ends, or minus the signal that ended it."""
        process, self._process = self._process, None
        assert process is not None
        try:
            return process.wait(timeout=ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            _close_pipes(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_installed(kind: str) -> None:
    """Raise MissingExtra if the package for a kind of file is not installed."""
    if (package := PACKAGES.get(kind)) and not find_spec(package):
        raise MissingExtra(f"reading {kind} needs {package}; run: {install_command('documents')}")


def _start(limits: tuple[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", "-m", "shoal.extraction.reader_process", str(os.getpid()), *limits],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # libraries log what they find in files
        bufsize=0,
        process_group=0,  # Ctrl-C is for its parent, which ends it
    )


def _close_pipes(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def _ask(
    process: "subprocess.Popen[bytes]", kind: str, pieces: Iterable[bytes], waiting: Callable[[], object]
) -> bytes | None:
    """Send a file and return the answer; None if the process ends before. Raises UnreadableFile for a large file."""
    assert process.stdin is not None
    assert process.stdout is not None
    size = 0
    try:
        _write_all(process.stdin.fileno(), f"{kind}\n".encode())
        for piece in pieces:
            if (size := size + len(piece)) > MAX_FILE_BYTES:
                raise UnreadableFile(f"it has over {MAX_FILE_BYTES:,} bytes, the most of a file: cut it into several")
            if piece:
                _write_all(process.stdin.fileno(), len(piece).to_bytes(4) + piece)
        _write_all(process.stdin.fileno(), bytes(4))
    except BrokenPipeError:
        return None
    found = _receive(process.stdout.fileno(), 4, waiting)
    num_bytes = int.from_bytes(found)
    if len(found) < 4 or num_bytes > MAX_ANSWER_BYTES:
        return None
    answer = _receive(process.stdout.fileno(), num_bytes, waiting)
    return bytes(answer) if len(answer) == num_bytes else None


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _receive(descriptor: int, num_bytes: int, waiting: Callable[[], object]) -> bytearray:
    """Return `num_bytes` bytes, or fewer if there are no more."""
    found = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while len(found) < num_bytes:
            if not selector.select(WAITING_EVERY_S):
                waiting()
            elif piece := os.read(descriptor, min(num_bytes - len(found), 2**16)):
                found += piece
            else:
                break
    return found


def _extracted(answer: bytes) -> Extracted:
    """Return the text in an answer, which a hostile file may have made. Raises UnreadableFile."""
    try:
        values: Any = json.loads(answer)
        if error := values.get("error"):
            raise UnreadableFile(str(error)[:1_000])
        text, title = values["text"], values["title"]
        if isinstance(text, str) and isinstance(title, str):
            return Extracted(text, title)
    except (ValueError, LookupError, AttributeError, RecursionError):
        pass
    raise UnreadableFile("its reader did not answer as one does: leave the file out")


def _reason(exit_code: int) -> str:
    """Return why the process ended without an answer."""
    if exit_code == -signal.SIGXCPU:
        return "reading it takes too much of the processor's time: save it anew, or leave it out"
    return f"reading it ended the process that did (exit code {exit_code}): save it anew, or leave it out"
