"""The text of a PDF file. Needs pypdf, which limits what is unpacked and how deep it is nested."""

import io
import re

from shoal.extraction.kinds import MAX_TEXT_BYTES, Extracted, UnreadableFile, one_line

#: A word that is divided at the end of a line. A capital letter or a digit after the hyphen tells of a compound.
_DIVIDED = re.compile(r"(?<=[^\W\d_])-\n(?=[^\W\d_A-Z])")


def extract_pdf(data: bytes) -> Extracted:
    """Return the text of the pages, with an empty line between two of them. Raises UnreadableFile."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    reader = PdfReader(io.BytesIO(data))
    try:
        is_locked = reader.is_encrypted and not reader.decrypt("")
    except DependencyError:  # the package that decrypts is not one of Shoal's
        is_locked = True
    if is_locked:
        raise UnreadableFile("it is encrypted: save it without a password")
    pages, size = [], 0
    for page in reader.pages:
        pages.append(page.extract_text().strip())
        size += len(pages[-1])
        if size > MAX_TEXT_BYTES:  # the rest would only take time
            raise UnreadableFile(f"it has over {MAX_TEXT_BYTES:,} characters of text: cut it into several files")
    text = "\n\n".join(pages).strip()
    if pages and not text:
        raise UnreadableFile("there is no text in it: if its pages are pictures, run OCR on it first")
    title = (reader.metadata and reader.metadata.title) or ""
    return Extracted(_DIVIDED.sub("", text), one_line(str(title)))
