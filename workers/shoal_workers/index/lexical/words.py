"""The words of a text, in any writing, with their places."""

import re
import unicodedata
from collections.abc import Iterator
from itertools import chain
from typing import Literal

#: Writings that put no spaces between words, or join what others separate: Thai, Lao, Burmese, Khmer, Japanese,
#: Chinese and Korean.
_UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1780-\u17d3\u3041-\u3096\u3099-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u3105-\u312f\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)

#: Marks that follow a letter, such as accents and the vowels of Indic writings: Python counts none of them to a word.
_MARKS = "".join(
    chr(code)
    for code in chain(range(0x300, 0x870), range(0x900, 0xE00))
    if unicodedata.category(chr(code)).startswith("M")
)

_LETTERS = rf"[^\W_{_UNSPACED}]"
_RUN = re.compile(rf"[{_UNSPACED}]+")
_WORD = re.compile(rf"[{_UNSPACED}]+|{_LETTERS}+(?:[{_MARKS}]+{_LETTERS}*)*")
_ASCII_WORD = re.compile("[A-Za-z0-9]+")

#: Most characters of a word that count.
MAX_CHARS = 64

#: A piece of text that is brought into one form at a time. CPython orders the marks of a letter in a time that grows
#: with the square of their number, so it is given no whole text. Pieces end at white space where they have some.
_PIECE = re.compile(r".{0,511}\s|.{1,512}", re.DOTALL)


def split_words(text: str) -> list[str]:
    """Return the words of a text as they are written; a run of characters without spaces is one word."""
    return (_ASCII_WORD if text.isascii() else _WORD).findall(text)


def find_words(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield each word of a text with its start and stop, in characters.

    A run of characters without spaces comes as its pairs of neighbours, or as its only character.
    """
    for match in (_ASCII_WORD if text.isascii() else _WORD).finditer(text):
        if is_unspaced(word := match[0]) and len(word) > 2:
            for place in range(len(word) - 1):
                yield match.start() + place, match.start() + place + 2, word[place : place + 2]
        else:
            yield match.start(), match.end(), word


def is_unspaced(word: str) -> bool:
    """Return True for a run of characters of a writing without spaces."""
    return not word.isascii() and _RUN.match(word) is not None


def parts_of(run: str) -> Iterator[str]:
    """Yield the characters of a run without spaces, and each pair of neighbours."""
    yield from run
    for place in range(len(run) - 1):
        yield run[place : place + 2]


def normalised(text: str) -> str:
    """Return a text in lower case and in one of the forms that Unicode has for it.

    The time grows with its length: a word of hundreds of characters has its form in pieces.
    """
    if text.isascii():
        return text.lower()
    return _in_form("NFKC", _in_form("NFKC", text).casefold())


def without_accents(word: str) -> str:
    """Return a normalised word without accents and other marks above and below its letters."""
    if word.isascii():
        return word
    letters = _in_form("NFD", word)
    return _in_form("NFC", "".join(letter for letter in letters if not "\u0300" <= letter <= "\u036f"))


def _in_form(form: Literal["NFC", "NFD", "NFKC"], text: str) -> str:
    return "".join(unicodedata.normalize(form, piece) for piece in _PIECE.findall(text))
