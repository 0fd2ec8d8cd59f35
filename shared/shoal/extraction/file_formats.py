"""The texts of web pages, Markdown, PDF and plain text files. Needs selectolax for web pages, and pypdf for PDF."""

import codecs
import io
import re
from typing import Any

from shoal.extraction.reader_client import MAX_TEXT_BYTES, Extracted, UnreadableFile

#: A page can declare its encoding within this many bytes from its beginning.
DECLARED_BYTES = 1_024

#: Largest number of characters of a title.
MAX_TITLE_CHARS = 500

_BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}

_DECLARED = re.compile(
    rb"""<(?:meta\b[^>]{0,200}?\bcharset|\?xml\b[^>]{0,100}?\bencoding)\s*=\s*["']?\s*([\w:.-]{1,40})""", re.IGNORECASE
)

#: Encodings that browsers replace with others. A declaration of UTF-16 is wrong, because it was read as ASCII.
_READ_AS = {
    **{"iso8859-1": "cp1252", "ascii": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "gb2312": "gb18030"},
    **{"gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs"},
    **dict.fromkeys(("utf-16", "utf-16-le", "utf-16-be"), "utf-8"),
}

#: Characters that no text has. They mark the ends of lines and paragraphs, and replace white space in `pre` elements.
_LINE, _PARAGRAPH, *_KEPT = map(chr, range(0xFDD0, 0xFDD5))
_KEEP = str.maketrans(" \t\n", "".join(_KEPT))
_GIVE_BACK = str.maketrans("".join(_KEPT), " \t\n")

#: The elements before and after which a line or a paragraph ends, and the cells of tables.
_OF_LINES = (
    "address, aside, br, caption, center, dd, details, div, dt, fieldset, figcaption, form, header, hr, legend, li, "
    "main, option, summary, tbody, tfoot, thead, tr"
)
_OF_PARAGRAPHS = "article, blockquote, dl, figure, h1, h2, h3, h4, h5, h6, ol, p, pre, section, table, ul"
_OF_CELLS = "td, th"

#: Elements that do not contain the page's own text, such as programs, pictures, forms and navigation.
_LEFT_OUT = (
    "audio, button, canvas, datalist, dialog, embed, footer, head, iframe, input, math, nav, noscript, object, script, "
    "select, style, svg, template, textarea, title, video"
)

_FENCED = r"^ {0,3}(`{3,}|~{3,})[^`\n]*\n[\s\S]*?(?:^ {0,3}\1|\Z)"  # a block of code, which has no headings
_HEADING = re.compile(_FENCED + r"|^ {0,3}#{1,6}[ \t](.*)|^(.+)\n(?:=+|-{2,})[ \t]*$", re.MULTILINE)
_TITLE = re.compile(r"^title:(.*)", re.MULTILINE)

#: The hyphen with which a PDF file divides a word at the end of a line. Before a capital letter or a digit, a hyphen
#: belongs to a compound.
_DIVIDED = re.compile(r"(?<=[^\W\d_])-\n(?=[^\W\d_A-Z])")


def decode(data: bytes, may_declare: bool = False) -> str:
    """Return the text of a file. Its byte order mark or declaration gives the encoding. Raises UnreadableFile."""
    mark = next(filter(data.startswith, _BYTE_ORDER_MARKS), b"")
    encoding = _BYTE_ORDER_MARKS.get(mark, "utf-8")
    declared = _DECLARED.search(data[:DECLARED_BYTES]) if may_declare and not mark else None
    try:
        if declared:
            encoding = codecs.lookup(declared[1].decode("ascii", "replace").lower().removeprefix("x-")).name
            encoding = _READ_AS.get(encoding, encoding)
        text = data[len(mark) :].decode(encoding)
    except LookupError as error:
        label = declared[1].decode("ascii", "replace") if declared else encoding
        raise UnreadableFile(f"it declares the encoding {label}, which is not known: convert it to UTF-8") from error
    except UnicodeDecodeError as error:
        says = "and it declares no other encoding" if encoding == "utf-8" else "which it declares"
        raise UnreadableFile(
            f"byte 0x{error.object[error.start]:02x} at {error.start + len(mark):,} is not {encoding}, {says}: "
            f"correct it, or convert it with iconv -f ENCODING -t UTF-8"
        ) from error
    if "\0" in text:
        raise UnreadableFile("there is a NUL character in it: is the file text?")
    return text


def extract_html(data: bytes) -> Extracted:
    """Return the title and the text of a page, with a line for each block and empty lines between paragraphs.

    If the page has a single `main` element, or else a single `article` element, only its text is returned. Navigation
    and footers are left out. Raises UnreadableFile.
    """
    from selectolax.lexbor import LexborHTMLParser

    page = LexborHTMLParser(decode(data, may_declare=True))
    titles = [_one_line(node.text()) for tag in ("title", "h1") if (node := page.css_first(tag))]
    found = [nodes[0] for tag in ("main", "article") if len(nodes := page.css(tag)) == 1]
    texts = (_element_text(node) for node in (*found, page.body) if node)
    return Extracted(next(filter(None, texts), ""), next(filter(None, titles), ""))


def _element_text(root: Any) -> str:
    for node in root.css(_LEFT_OUT):
        node.replace_with("")  # detaches the element, because another one of the list may be inside it
    for tags, mark in ((_OF_LINES, _LINE), (_OF_PARAGRAPHS, _PARAGRAPH), (_OF_CELLS, " ")):
        for node in root.css(tags):
            node.insert_before(mark)
            node.insert_after(mark)
    for node in root.css("pre"):
        node.replace_with(node.text().translate(_KEEP))
    paragraphs = []
    for paragraph in root.text().split(_PARAGRAPH):
        lines = [" ".join(line.split()).strip(_KEPT[-1]) for line in paragraph.split(_LINE) if not line.isspace()]
        if text := "\n".join(filter(None, lines)):
            paragraphs.append(text)
    return "\n\n".join(paragraphs).translate(_GIVE_BACK).strip()


def extract_markdown(data: bytes) -> Extracted:
    """Return the text of a file without front matter and comments, and its title. Raises UnreadableFile."""
    text, front = decode(data).replace("\r\n", "\n"), ""
    if text.startswith("---\n") and (end := text.find("\n---\n", 3)) >= 0:
        front, text = text[4:end], text[end + 5 :]
    parts, start = [], 0
    while (begin := text.find("<!--", start)) >= 0 and (end := text.find("-->", begin + 4)) >= 0:
        parts.append(text[start:begin])
        start = end + 3
    text = "".join([*parts, text[start:]])
    titles = [found[1].strip(" \t").strip("\"'") for found in _TITLE.finditer(front)]
    titles += ((found[2] or found[3] or "").strip(" \t#") for found in _HEADING.finditer(text))
    return Extracted(text.strip(), next(filter(None, map(_one_line, titles)), ""))


def extract_pdf(data: bytes) -> Extracted:
    """Return the title of a PDF file, and the texts of its pages with empty lines between. Raises UnreadableFile."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    reader = PdfReader(io.BytesIO(data))
    try:
        is_locked = reader.is_encrypted and not reader.decrypt("")
    except DependencyError:  # Shoal does not install the package that decrypts
        is_locked = True
    if is_locked:
        raise UnreadableFile("it is encrypted: save it without a password")
    pages, size = [], 0
    for page in reader.pages:
        pages.append(page.extract_text().strip())
        size += len(pages[-1])
        if size > MAX_TEXT_BYTES:  # the caller will refuse the text as too long, so the rest is not read
            raise UnreadableFile(f"it has over {MAX_TEXT_BYTES:,} characters of text: cut it into several files")
    text = "\n\n".join(pages).strip()
    if pages and not text:
        raise UnreadableFile("there is no text in it: if its pages are pictures, run OCR on it first")
    title = (reader.metadata and reader.metadata.title) or ""
    return Extracted(_DIVIDED.sub("", text), _one_line(str(title)))


def _one_line(title: str) -> str:
    return " ".join(title[: 10 * MAX_TITLE_CHARS].split())[:MAX_TITLE_CHARS]
