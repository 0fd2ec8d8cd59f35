"""From texts to terms: words of a language in lower case, by their stems, without stop words and accents."""

from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from shoal.contract.languages import NO_LANGUAGE
from shoal.errors import NotReady
from shoal.process.extra import install_command
from shoal_workers.index.lexical.stop_words import STOP_WORDS
from shoal_workers.index.lexical.words import (
    MAX_CHARS,
    find_words,
    is_unspaced,
    normalised,
    parts_of,
    split_words,
    without_accents,
)

#: Most words whose terms are kept in memory, and the longest one.
_MAX_KEPT, _MAX_KEPT_CHARS = 2**18, 32

#: Texts from which a language is found, the least share of their words that are stop words of it, and by how much this
#: share exceeds that of any other language.
NUM_SAMPLED, MIN_SHARE, MIN_LEAD = 1_000, 0.15, 1.5

#: Least words that tell a language.
_MIN_WORDS = 50


class Analyzer:
    """The terms of texts in a language, or of no known one. Thread-safe.

    A term is a number of 64 bits, the hash of a word's stem. Of a run of characters without spaces, each character and
    each pair of neighbours is a term. Raises NotReady if the stemmer is not installed.
    """

    def __init__(self, language: str):
        self._terms = _Terms(STOP_WORDS.get(language, frozenset()), _stemmer(language))

    def terms(self, text: str) -> NDArray[np.uint64]:
        """Return the terms of a text in its order, with repetitions."""
        return np.fromiter(chain.from_iterable(map(self._terms.__getitem__, split_words(text))), np.uint64)

    def places(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield start, stop and term of each word of a text that is no stop word."""
        for start, stop, word in find_words(text):
            if terms := self._terms[word]:
                yield start, stop, terms[-1]

    def words(self, text: str) -> dict[int, str]:
        """Return for each term of a text a word that has it."""
        return {term: text[start:stop] for start, stop, term in self.places(text)}


class _Terms(dict[str, tuple[int, ...]]):
    """The terms of words that were met before; those of other words are found when they are looked up."""

    def __init__(self, stop_words: frozenset[str], stem: Callable[[str], str]):
        super().__init__()
        self._stop_words = stop_words
        self._stem = stem

    def __missing__(self, word: str) -> tuple[int, ...]:
        if is_unspaced(word):
            terms = tuple(map(_hash_of, parts_of(word)))
        else:
            term = normalised(word[:MAX_CHARS])
            terms = () if term in self._stop_words else (_hash_of(without_accents(self._stem(term))),)
        if len(word) <= _MAX_KEPT_CHARS:
            if len(self) >= _MAX_KEPT:
                self.clear()
            self[word] = terms
        return terms


def find_language(texts: Iterator[str]) -> str:
    """Return the language of which most words are stop words; `NO_LANGUAGE` if it is not clear."""
    words = [normalised(word[:MAX_CHARS]) for text in texts for word in split_words(text)]
    shares = {name: sum(word in known for word in words) / (len(words) or 1) for name, known in STOP_WORDS.items()}
    best, second = sorted(shares, key=shares.__getitem__, reverse=True)[:2]
    is_clear = shares[best] >= max(MIN_SHARE, MIN_LEAD * shares[second])
    return best if len(words) >= _MIN_WORDS and is_clear and has_stemmer() else NO_LANGUAGE


@cache
def has_stemmer() -> bool:
    """Return True if the library that finds the stems of words is installed."""
    try:
        import Stemmer  # noqa: F401
    except ImportError:
        return False
    return True


def _stemmer(language: str) -> Callable[[str], str]:
    """Return the function that finds the stem of a word."""
    if language == NO_LANGUAGE:
        return str
    if not has_stemmer():
        raise NotReady(f"the words of an index in {language} need the stemmer: {install_command('workers')}")
    import Stemmer

    # Its own cache would be a second one, and is not safe to share among threads.
    return Stemmer.Stemmer(language, 0).stemWord  # type: ignore[no-any-return]


def _hash_of(term: str) -> int:
    return int.from_bytes(blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
