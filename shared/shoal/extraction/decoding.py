"""The encodings of text files and web pages."""

import codecs
import contextlib
import re

from shoal.extraction.kinds import UnreadableFile

#: Bytes at the beginning of a page in which it may say what its encoding is.
DECLARED_BYTES = 1_024

_BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}

_DECLARED = re.compile(
    rb"""<(?:meta\b[^>]{0,200}?\bcharset|\?xml\b[^>]{0,100}?\bencoding)\s*=\s*["']?\s*([\w:.-]{1,40})""", re.IGNORECASE
)

#: The encodings that browsers know, by the names that Python has for them, beside those of the next table.
_KNOWN = re.compile(
    r"utf-8|cp866|koi8-[ru]|mac-roman|cp874|gbk|gb18030|big5|big5hkscs|euc_jp|iso2022_jp|shift_jis|cp932|euc_kr|cp949|"
    r"johab|iso8859-([2-8]|10|1[3-6])|cp125[0-8]"
)

#: Encodings that browsers read as another one. A declaration in ASCII is in no page of UTF-16.
_READ_AS = {
    **{"iso8859-1": "cp1252", "ascii": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "gb2312": "gbk"},
    **dict.fromkeys(("utf-16", "utf-16-le", "utf-16-be"), "utf-8"),
}


def decode(data: bytes, may_declare: bool = False) -> str:
    """Return the text of a file: by its byte order mark, by what a page declares, else as UTF-8.

    Raises UnreadableFile for an unknown encoding, and for bytes that are not of it.
    """
    mark = next(filter(data.startswith, _BYTE_ORDER_MARKS), b"")
    encoding = _BYTE_ORDER_MARKS.get(mark) or (_declared(data) if may_declare else "utf-8")
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
    """Return Python's name of the encoding that a page declares; UTF-8 if it declares none."""
    if not (found := _DECLARED.search(data[:DECLARED_BYTES])):
        return "utf-8"
    label, name = found[1].decode("ascii", "replace"), ""
    with contextlib.suppress(LookupError):
        name = codecs.lookup(label).name
    name = _READ_AS.get(name, name)
    if not _KNOWN.fullmatch(name):
        raise UnreadableFile(f"it declares the encoding {label}, which is not known: convert it to UTF-8")
    return name
