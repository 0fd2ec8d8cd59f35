"""The encodings of text files and web pages."""

import codecs
import re

from shoal.extraction.kinds import UnreadableFile

#: Bytes at the beginning of a page in which it may say what its encoding is.
DECLARED_BYTES = 1_024

_BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}

_DECLARED = re.compile(
    rb"""<(?:meta\b[^>]{0,200}?\bcharset|\?xml\b[^>]{0,100}?\bencoding)\s*=\s*["']?\s*([\w:.-]{1,40})""", re.IGNORECASE
)

#: The encodings that browsers know, by the names that Python has for them. Python has others that run code or unpack.
_KNOWN = {
    *("utf-8", "cp866", "koi8-r", "koi8-u", "mac-roman", "cp874", "gb2312", "gbk", "gb18030", "big5", "big5hkscs"),
    *("euc_jp", "iso2022_jp", "shift_jis", "cp932", "euc_kr", "cp949", "johab"),
    *(f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
    *(f"cp125{page}" for page in range(9)),
}

#: Encodings that browsers read as another one.
_READ_AS = {"iso8859-1": "cp1252", "ascii": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "gb2312": "gbk"}


def decode(data: bytes, may_declare: bool = False) -> str:
    """Return the text of a file: by its byte order mark, by what a page declares, else as UTF-8.

    Raises UnreadableFile for an unknown encoding, and for bytes that are not of it.
    """
    mark, encoding = next(((m, e) for m, e in _BYTE_ORDER_MARKS.items() if data.startswith(m)), (b"", ""))
    encoding = encoding or (_declared(data) if may_declare else "") or "utf-8"
    try:
        text = data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        says = "and it declares no other encoding" if encoding == "utf-8" else "which it declares"
        raise UnreadableFile(
            f"byte 0x{error.object[error.start]:02x} at {error.start + len(mark):,} is not {encoding}, {says}: "
            f"correct it, or convert it with iconv -f ENCODING -t UTF-8"
        ) from error
    if "\0" in text:
        raise UnreadableFile("there is a NUL character in it: is the file text?")
    return text


def _declared(data: bytes) -> str:
    """Return Python's name of the encoding that a page declares; empty if it declares none."""
    found = _DECLARED.search(data[:DECLARED_BYTES])
    if not found:
        return ""
    label = found[1].decode("ascii", "replace")
    try:
        name = codecs.lookup(label).name
    except LookupError:
        name = ""
    if name.startswith("utf-16"):  # the declaration is ASCII, so the page is not
        return "utf-8"
    name = _READ_AS.get(name, name)
    if name not in _KNOWN:
        raise UnreadableFile(f"it declares the encoding {label}, which is not known: convert it to UTF-8")
    return name
