"""Turning texts into terms: the stems of words in any script, in lower case and without accents, except stop words."""

import re
import unicodedata
from collections.abc import Callable, Container, Iterator
from functools import cache
from hashlib import blake2b
from itertools import chain
from typing import Literal

import numpy as np
import Stemmer
from numpy.typing import NDArray

from shoal.contract.languages import LEARNED, NO_LANGUAGE
from shoal_workers.index.lexical.stop_words import STOP_WORDS

#: Characters of scripts that put no spaces between words, or that write several words as one: Thai, Lao, Burmese,
#: Khmer, Japanese, Chinese and Korean.
_UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1780-\u17d3\u3041-\u3096\u3099-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u3105-\u312f\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)

#: Marks that follow a letter, such as accents and the vowels of Indic scripts. Python's `\w` does not match them.
_MARKS = "".join(
    chr(code)
    for code in chain(range(0x300, 0x870), range(0x900, 0xE00))
    if unicodedata.category(chr(code)).startswith("M")
)

_LETTERS = rf"[^\W_{_UNSPACED}]"
_RUN = re.compile(rf"[{_UNSPACED}]+")
_WORD = re.compile(rf"[{_UNSPACED}]+|{_LETTERS}+(?:[{_MARKS}]+{_LETTERS}*)*")
_ASCII_WORD = re.compile("[A-Za-z0-9]+")

#: A word's term depends only on this many characters at the word's start.
MAX_CHARS = 64

#: Largest number of words whose terms are kept in memory, and largest number of characters in such a word.
_MAX_KEPT, _MAX_KEPT_CHARS = 2**18, 32

#: A language is detected from `NUM_SAMPLED` texts. The share of its stop words among all words must be at least
#: `MIN_SHARE`, and at least `MIN_LEAD` times the share of any other language.
NUM_SAMPLED, MIN_SHARE, MIN_LEAD = 1_000, 0.15, 1.5

#: Least number of words from which a language is detected.
_MIN_WORDS = 50

#: Texts are normalised in pieces that match this pattern, because the time in which CPython orders the marks of a
#: letter grows with the square of their number. Pieces end at white space where possible.
_PIECE = re.compile(r".{0,511}\s|.{1,512}", re.DOTALL)


def split_words(text: str) -> list[str]:
    """Return the words of a text as they are written; a run of characters of a script without spaces is one word."""
    return (_ASCII_WORD if text.isascii() else _WORD).findall(text)


def find_words(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield each word of a text with its start and stop, in characters.

    For a run of a script without spaces, yield each pair of neighbouring characters, or the only character.
    """
    for match in (_ASCII_WORD if text.isascii() else _WORD).finditer(text):
        if is_unspaced(word := match[0]) and len(word) > 2:
            for place in range(len(word) - 1):
                yield match.start() + place, match.start() + place + 2, word[place : place + 2]
        else:
            yield match.start(), match.end(), word


def is_unspaced(word: str) -> bool:
    """Return True for a run of characters of a script without spaces."""
    return not word.isascii() and _RUN.match(word) is not None


def normalised(text: str) -> str:
    """Return a text in lower case and in Unicode's form NFKC.

    The time is linear in the length, because a word of hundreds of characters is normalised in pieces.
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


class Analyzer:
    """Finds the terms of texts whose language is given or unknown. Thread-safe.

    A term is the hash of a word's stem, a number of 64 bits. In a run of a script without spaces, each character and
    each pair of neighbours has a term.
    """

    def __init__(self, language: str):
        self._terms = _terms_in(language)

    def terms(self, text: str) -> NDArray[np.uint64]:
        """Return the terms of a text in their order, with repetitions."""
        return np.fromiter(chain.from_iterable(map(self._terms.__getitem__, split_words(text))), np.uint64)

    def places(self, text: str, wanted: Container[int] | None = None) -> Iterator[tuple[int, int, int]]:
        """Yield the start, stop and term of each word that is not a stop word.

        With `wanted`, yield only the words and characters with these terms.
        """
        for start, stop, word in find_words(text):
            terms = self._terms[word]
            if terms and (wanted is None or terms[-1] in wanted):
                yield start, stop, terms[-1]
                continue
            for n, term in enumerate(terms[:-1]):
                if wanted and term in wanted:
                    yield start + n, start + n + 1, term

    def words(self, text: str) -> dict[int, str]:
        """Return a word for each term of the text, as the text spells the word."""
        characters = {self._terms[one][0]: one for run in _RUN.findall(text) for one in run}
        return characters | {term: text[start:stop] for start, stop, term in self.places(text)}


class _Terms(dict[str, tuple[int, ...]]):
    """A cache of the terms of words. A look-up of a missing word computes the word's terms."""

    def __init__(self, stop_words: frozenset[str], stem: Callable[[str], str]):
        super().__init__()
        self._stop_words = stop_words
        self._stem = stem

    def __missing__(self, word: str) -> tuple[int, ...]:
        if is_unspaced(word):
            pairs = (word[place : place + 2] for place in range(len(word) - 1))
            terms = tuple(map(_hash_of, chain(word, pairs)))
        else:
            term = normalised(word[:MAX_CHARS])
            terms = () if term in self._stop_words else (_hash_of(without_accents(self._stem(term))),)
        if len(word) <= _MAX_KEPT_CHARS:
            if len(self) >= _MAX_KEPT:
                self.clear()
            self[word] = terms
        return terms


@cache
def _terms_in(language: str) -> _Terms:
    """Return the terms of a language's words. All indexes share them, because they take up to 47 MB."""
    # The stemmer's own cache is off: it would be a second cache, and is not thread-safe.
    stem = str if language in (NO_LANGUAGE, LEARNED) else Stemmer.Stemmer(language, 0).stemWord
    return _Terms(STOP_WORDS.get(language, frozenset()), stem)


def find_language(texts: Iterator[str]) -> str:
    """Return the language whose stop words are most frequent in the texts; `NO_LANGUAGE` if none is clear."""
    words = [normalised(word[:MAX_CHARS]) for text in texts for word in split_words(text)]
    shares = {name: sum(word in known for word in words) / (len(words) or 1) for name, known in STOP_WORDS.items()}
    best, second = sorted(shares, key=shares.__getitem__, reverse=True)[:2]
    is_clear = shares[best] >= max(MIN_SHARE, MIN_LEAD * shares[second])
    return best if len(words) >= _MIN_WORDS and is_clear else NO_LANGUAGE


def _hash_of(term: str) -> int:
    return int.from_bytes(blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
