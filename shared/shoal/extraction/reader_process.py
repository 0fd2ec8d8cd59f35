"""The process that reads files: one that hangs, or fills the memory, ends this process and nothing else.

`python -m shoal.extraction.reader_process PARENT PDF_S OTHER_S` reads one file after the other from its standard
input: a line with the kind, then pieces, each of which begins with its size in four bytes, up to one of no bytes. It
answers each with four bytes of size and a JSON object, with `text` and `title` or with `error`. A PDF file may take
`PDF_S` seconds of the processor's time, and any other `OTHER_S`.
"""

import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import BinaryIO

from shoal.extraction.decoding import decode
from shoal.extraction.html_text import extract_html
from shoal.extraction.kinds import MAX_TEXT_BYTES, Extracted, UnreadableFile
from shoal.extraction.markdown_text import extract_markdown
from shoal.extraction.pdf_text import extract_pdf
from shoal.process.memory_limit import limit_memory
from shoal.process.parent_death import die_with_parent

#: Most memory that reading a file takes, in bytes.
MAX_MEMORY_BYTES = 2**30

_EXTRACT: dict[str, Callable[[bytes], Extracted]] = {
    "html": extract_html,
    "markdown": extract_markdown,
    "pdf": extract_pdf,
    "text": lambda data: Extracted(decode(data)),
}


def main(parent: str, pdf_s: str, other_s: str) -> None:
    """Answer files until there are no more, or one took too much memory."""
    die_with_parent(signal.SIGKILL, int(parent))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    files, answers = sys.stdin.buffer, _answers()
    while kind := files.readline().decode().strip():
        data = _read(files)
        limit_memory(MAX_MEMORY_BYTES)
        _limit_time(int(pdf_s if kind == "pdf" else other_s))
        try:
            answer, is_last = _answer(kind, data), False
        except MemoryError:
            answer, is_last = {"error": f"reading it takes over {MAX_MEMORY_BYTES:,} bytes of memory"}, True
        packed = json.dumps(answer).encode()
        answers.write(len(packed).to_bytes(4) + packed)
        answers.flush()
        if is_last:
            return


def _answers() -> BinaryIO:
    """Return the standard output, into which nothing else is written from now on, whatever a library prints."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
    return answers


def _answer(kind: str, data: bytes) -> dict[str, str]:
    try:
        found = _EXTRACT[kind](data)
        # PDF files have any code points, also halves of surrogate pairs.
        text, title = (part.encode(errors="replace").decode().replace("\0", "") for part in (found.text, found.title))
    except UnreadableFile as error:
        return {"error": str(error)}
    except MemoryError:
        raise
    except Exception as error:  # libraries raise any, for files that are damaged in any way
        return {"error": f"not readable as {kind} ({type(error).__name__}: {error!s:.200}): is it complete?"}
    if not text.strip():
        return {"error": "there is no text in it: leave it out"}
    if len(text.encode()) > MAX_TEXT_BYTES:
        return {"error": f"its text has over {MAX_TEXT_BYTES:,} bytes: cut it into several files"}
    return {"text": text, "title": title}


def _read(files: BinaryIO) -> bytes:
    pieces = []
    while size := int.from_bytes(files.read(4)):
        pieces.append(files.read(size))
    return b"".join(pieces)


def _limit_time(seconds: int) -> None:
    """Let the system end this process after `seconds` more of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    wanted, (_, hard) = int(used.ru_utime + used.ru_stime) + 1 + seconds, resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main(*sys.argv[1:])
    os._exit(0)
