"""The process that reads files. A file that takes too much time or memory ends only this process.

`python -m shoal.extraction.reader_process DESCRIPTOR PARENT PDF_S OTHER_S` reads one file after the other from a
connection. A file arrives as a message with its kind, messages with its pieces, and an empty message. The answer
consists of three messages: the error of the file, its text and its title. Reading may use `PDF_S` seconds of processor
time for a PDF file, and `OTHER_S` for any other file.
"""

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

from shoal.extraction.file_formats import decode, extract_html, extract_markdown, extract_pdf
from shoal.extraction.reader_client import MAX_MEMORY_BYTES, MAX_TEXT_BYTES, Extracted, UnreadableFile
from shoal.process.system_limits import die_with_parent, limit_memory

_EXTRACT: dict[str, Callable[[bytes], Extracted]] = {
    "html": extract_html,
    "markdown": extract_markdown,
    "pdf": extract_pdf,
    "text": lambda data: Extracted(decode(data)),
}


def main(descriptor: str, parent: str, pdf_s: str, other_s: str) -> None:
    """Answer every file. Raises EOFError once the connection is closed, and MemoryError if a file needs too much."""
    die_with_parent(signal.SIGKILL, int(parent))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = Connection(int(descriptor))
    while True:
        kind = connection.recv_bytes().decode()
        data = b"".join(iter(connection.recv_bytes, b""))
        limit_memory(MAX_MEMORY_BYTES)
        _limit_time(int(pdf_s if kind == "pdf" else other_s))
        for answer in _answer(kind, data):
            connection.send_bytes(answer)


def _answer(kind: str, data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the error of a file, its text and its title. The error is empty if the file was read."""
    try:
        found = _EXTRACT[kind](data)
    except UnreadableFile as error:
        return str(error).encode(errors="replace"), b"", b""
    except MemoryError:
        raise
    except Exception as error:  # libraries may raise any error for a damaged file
        reason = f"not readable as {kind} ({type(error).__name__}: {error!s:.200}): is it complete?"
        return reason.encode(errors="replace"), b"", b""
    # The text of a PDF file may contain any code point, even half of a surrogate pair.
    text, title = (part.replace("\0", "").encode(errors="replace") for part in (found.text, found.title))
    if not text.strip():
        return b"there is no text in it: leave it out", b"", b""
    if len(text) > MAX_TEXT_BYTES:
        return f"its text has over {MAX_TEXT_BYTES:,} bytes: cut it into several files".encode(), b"", b""
    return b"", text, title


def _limit_time(seconds: int) -> None:
    """Let the system end this process after `seconds` more seconds of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    wanted, (_, hard) = int(used.ru_utime + used.ru_stime) + 1 + seconds, resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, EOFError, OSError):
        main(*sys.argv[1:])
    os._exit(0)
