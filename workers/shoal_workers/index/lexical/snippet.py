"""The snippet of a hit: the passage of its text with the most important words of the query."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from shoal_workers.index.lexical.analyzer import Analyzer

#: The end of a sentence, and white space, which ends a word.
_SENTENCE_END = re.compile(r"[.!?…]['\")\]]*\s+|[。！？]\s*|\n+")
_SPACE = re.compile(r"\s+")

#: A match of a word of the query: its start, its stop and its term.
Match = tuple[int, int, int]


def snippet(
    text: str, analyzer: Analyzer, weights: Mapping[int, float], max_chars: int, num_read: int
) -> dict[str, Any]:
    """Return the best passage of a text: its words, where it starts and stops, and where it has words of the query.

    `weights` are the weights of the query's terms. Only the first `num_read` characters are searched. Positions are in
    characters; in `highlights` they count from the start of the passage.
    """
    matches = [*analyzer.places(text[:num_read], weights)]
    first, last = _best(matches, weights, max_chars)
    start, stop = _passage(text, first, last, max_chars)
    highlights: list[list[int]] = []
    for place, end, _ in matches:
        if place < start or end > stop:
            continue
        if highlights and place - start <= highlights[-1][1]:  # overlapping pairs of characters are joined
            highlights[-1][1] = end - start
        else:
            highlights.append([place - start, end - start])
    return {"text": text[start:stop], "start": start, "stop": stop, "highlights": highlights}


def _best(matches: list[Match], weights: Mapping[int, float], max_chars: int) -> tuple[int, int]:
    """Return start and stop of the passage of at most `max_chars` whose matched terms have the largest total weight.

    A term counts once; if passages are equal, the first is chosen.
    """
    best, span, total, begin = 0.0, (0, 0), 0.0, 0
    inside: Counter[int] = Counter()
    for start, stop, term in matches:
        if not inside[term]:
            total += weights[term]
        inside[term] += 1
        while matches[begin][0] < stop - max_chars and matches[begin][0] < start:
            gone = matches[begin][2]
            inside[gone] -= 1
            total -= 0 if inside[gone] else weights[gone]
            begin += 1
        if total > best + 1e-9:
            best, span = total, (matches[begin][0], stop)
    return span


def _passage(text: str, first: int, last: int, max_chars: int) -> tuple[int, int]:
    """Return the start and the stop of the passage around the matches. It begins and ends between words if possible."""
    spare = max(0, max_chars - (last - first))
    earliest = max(0, first - (spare if last + spare >= len(text) else spare // 2))
    start = _start(text, earliest, first)
    stop = min(len(text), start + max_chars)
    if stop < len(text) and not text[stop].isspace():
        ends = [space.start() for space in _SPACE.finditer(text, max(last, start + max_chars // 2), stop)]
        stop = ends[-1] if ends else stop
    return start, start + len(text[start:stop].rstrip())


def _start(text: str, earliest: int, first: int) -> int:
    """Return the first position from `earliest` to `first` where a sentence begins, or else where a word begins."""
    if earliest == 0:
        return len(text) - len(text.lstrip())
    for boundary in (_SENTENCE_END, _SPACE):
        if match := boundary.search(text, earliest - 1, first):
            return match.end()
    return earliest
