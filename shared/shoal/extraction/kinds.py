"""The kinds of files that are documents: what is taken out of one, and what is wrong with one."""

from dataclasses import dataclass

#: The kind of a file by the ending of its name.
KINDS = {
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".pdf": "pdf",
}

#: Version of the texts that are taken out of files, raised by one whenever a file gets another one.
TEXTS_VERSION = 2

#: The packages that kinds need, which the extra `documents` has.
PACKAGES = {"html": "selectolax", "pdf": "pypdf"}

#: Most bytes of a file, and of the text that is taken out of it.
MAX_FILE_BYTES, MAX_TEXT_BYTES = 256 * 2**20, 8 * 2**20

#: Most memory that reading a file takes, in bytes, and the exit code of a reader that needs more.
MAX_MEMORY_BYTES, OUT_OF_MEMORY = 2**30, 12

#: Most seconds of processor time for reading a PDF file, which may have thousands of pages, and for any other file.
MAX_PDF_S, MAX_OTHER_S = 120, 10


class UnreadableFile(Exception):
    """A fault of a file, with its remedy."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of a file, and its title if it has one."""

    text: str
    title: str = ""


def one_line(text: str, most: int = 500) -> str:
    """Return a title on one line, cut to `most` characters."""
    return " ".join(text[: 10 * most].split())[:most]
