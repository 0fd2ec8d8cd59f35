"""The kinds of files that are documents, the limits of reading one, and its text."""

from dataclasses import dataclass

#: The kind of a file by the ending of its name.
KINDS = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".md", ".markdown"), "markdown"),
    ".pdf": "pdf",
}

#: Version of the texts that are taken out of files, raised by one whenever a file gets another one.
TEXTS_VERSION = 2

#: Most bytes of a file, and of the text that is taken out of it.
MAX_FILE_BYTES, MAX_TEXT_BYTES = 256 * 2**20, 8 * 2**20

#: Most memory that reading a file takes, in bytes, and the exit code of a reader that needs more.
MAX_MEMORY_BYTES, OUT_OF_MEMORY = 2**30, 12


class UnreadableFile(Exception):
    """A fault of a file, with its remedy."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of a file, and its title if it has one."""

    text: str
    title: str = ""
