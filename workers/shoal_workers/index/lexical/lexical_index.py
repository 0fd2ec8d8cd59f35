"""The lexical index of a version: the documents that have each term, and the impact of the term in each.

Documents are scored by BM25 (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework"): the score is the
sum of weight times impact over the terms of the query. A term's weight is larger if fewer documents have the term. Its
impact in a document is larger if the document has it more often, and if the document is shorter.

In an index with learned words, terms are the ids of a model's tokens. A term's weight is its value in the model's
sparse vector of the query, and its impact is its value in the sparse vector of the document.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from shoal.contract.excerpt import excerpt
from shoal.contract.languages import LANGUAGES, LEARNED
from shoal.contract.vectors import SparseVector
from shoal.errors import IndexCorrupt
from shoal_workers.index.files.array_file import open_array
from shoal_workers.index.files.manifest import IMPACTS, LEXICAL, POSTINGS, STARTS, TERMS
from shoal_workers.index.lexical.analyzer import Analyzer

#: BM25's parameters, with the values of Lucene and Elasticsearch: saturation by repeated terms, and influence of the
#: length.
K1, B = 1.2, 0.75

#: Size of one step of impact. An impact is a whole number of steps, from 1 to 255.
IMPACT_STEP = (K1 + 1) / 255

#: Versions of terms and impacts, and of learned words. A version rises by 1 when texts get other terms or impacts.
VERSION, LEARNED_VERSION = 1, 2

#: Words are looked for only in this number of characters at the beginning of a query. Texts that are embedded have the
#: same limit.
MAX_QUERY_CHARS = 8_192

#: Largest number of postings that are read for a query: `POSTINGS_PER_DOCUMENT` times the number of documents, but at
#: least `LEAST_POSTINGS`. If a query has more postings, its most frequent terms are ignored.
POSTINGS_PER_DOCUMENT, LEAST_POSTINGS = 8, 2**20


def impacts(
    counts: NDArray[np.integer], lengths: NDArray[np.integer] | int, average_length: float
) -> NDArray[np.uint8]:
    """Return the impact, in steps from 1 to 255, of each term that a document of `lengths` terms has `counts` times."""
    norm = K1 * (1 - B + B * np.asarray(lengths, np.float64) / average_length)
    exact = counts * (K1 + 1) / (counts + norm)
    return np.clip(np.rint(exact / IMPACT_STEP), 1, 255).astype(np.uint8)


def terms_of(tokens: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Return the terms of a model's tokens: different numbers, spread over 64 bits like hashes of words."""
    return tokens.astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)


class QueryTerms(NamedTuple):
    """The terms of a query that are not ignored, uint64 `[terms]` in ascending order, and their float64 weights."""

    terms: NDArray[np.uint64]
    weights: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LexicalIndex:
    """The postings of a version, mapped into memory, or of documents that were added to it. Immutable.

    `terms` are in ascending order. The postings of term `n` are at `starts[n]` to `starts[n + 1]`: in `rows`, int32,
    the rows that have the term, and in `impacts`, uint8, its impact in each, in steps of the size `step`.
    """

    count: int
    analyzer: Analyzer
    average_length: float
    terms: NDArray[np.uint64]
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    impacts: NDArray[np.uint8]
    step: float = IMPACT_STEP
    is_learned: bool = False

    @classmethod
    def open(cls, folder: Path, count: int) -> Self:
        """Memory-map the files of a version with `count` documents. Raises IndexCorrupt."""
        about = read_description(folder / LEXICAL)
        num_terms, num_postings = about["num_terms"], about["num_postings"]
        starts = open_array(folder / STARTS, np.int64, (num_terms + 1,))
        if starts[0] != 0 or starts[-1] != num_postings or not (starts[1:] > starts[:-1]).all():
            raise IndexCorrupt(f"{folder / STARTS} does not say where postings begin: build the index again")
        return cls(
            count,
            Analyzer(about["language"]),
            about["average_length"],
            open_array(folder / TERMS, np.uint64, (num_terms,)),
            starts,
            open_array(folder / POSTINGS, np.int32, (num_postings,)),
            open_array(folder / IMPACTS, np.uint8, (num_postings,)),
            about.get("step", IMPACT_STEP),
            about["language"] == LEARNED,
        )

    def weigh(self, texts: Iterable[str]) -> QueryTerms:
        """Return the terms of a query's texts with their BM25 weights; a term that occurs twice counts twice."""
        found = np.concatenate(
            [np.empty(0, np.uint64), *(self.analyzer.terms(text[:MAX_QUERY_CHARS]) for text in texts)]
        )
        terms, counts = np.unique(found, return_counts=True)
        kept, num_with = self._rarest(terms)
        of_one_step = np.log1p((self.count - num_with + 0.5) / (num_with + 0.5)) * self.step
        return QueryTerms(terms[kept], counts[kept] * of_one_step)

    def weigh_learned(self, vectors: Iterable[SparseVector]) -> QueryTerms:
        """Return the tokens of a query's texts with the sums of their weights in the texts' sparse vectors."""
        found = [*vectors, SparseVector(np.empty(0, np.int32), np.empty(0, np.float32))]
        terms, places = np.unique(terms_of(np.concatenate([vector.indices for vector in found])), return_inverse=True)
        weights = np.bincount(places, np.concatenate([vector.values for vector in found]), len(terms))
        kept, _ = self._rarest(terms)
        return QueryTerms(terms[kept], weights[kept].astype(np.float64) * self.step)

    def _rarest(self, terms: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Return the positions of a query's terms that are not ignored, and the number of postings of each."""
        _, sizes = self._find(terms)
        shortest_first = np.argsort(sizes, kind="stable")
        most = max(LEAST_POSTINGS, POSTINGS_PER_DOCUMENT * self.count)
        num_kept = np.searchsorted(np.cumsum(sizes[shortest_first]), most, "right")
        kept = np.sort(shortest_first[:num_kept])
        return kept, sizes[kept]

    def scores(self, query: QueryTerms, live: "LexicalIndex | None" = None) -> NDArray[np.float32]:
        """Return the BM25 scores of all documents, float32, `live` documents last; 0 for a document without the terms.

        Raises IndexCorrupt for postings that no build wrote.
        """
        found = np.zeros(self.count + (live.count if live else 0), np.float32)
        of_version = found[: self.count]
        if live:
            found[self.count :] = live.scores(query)
        starts, sizes = self._find(query.terms)
        try:
            for start, size, weight in zip(starts.tolist(), sizes.tolist(), query.weights.tolist(), strict=True):
                part = slice(start, start + size)
                of_version[self.rows[part]] += self.impacts[part] * np.float32(weight)
        except IndexError as error:
            raise IndexCorrupt(f"postings have rows over {self.count:,}: build the index again") from error
        return found

    def impacts_in(self, row: int, terms: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Return the impact of each term in a document, uint8 `[terms]`; 0 for a term that the document lacks."""
        found = np.zeros(len(terms), np.uint8)
        starts, sizes = self._find(terms)
        for number, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            place = start + int(self.rows[start : start + size].searchsorted(np.int32(row)))
            if place < start + size and self.rows[place] == row:
                found[number] = self.impacts[place]
        return found

    def emptied(self) -> Self:
        """Return an index without documents. Documents added to it are scored with the statistics of this version."""
        empty = {name: getattr(self, name)[:0] for name in ("terms", "rows", "impacts")}
        return replace(self, count=0, starts=np.zeros(1, np.int64), **empty)

    def after(self, texts: Sequence[str], kept: Sequence[int], sparse: Sequence[SparseVector | None] = ()) -> Self:
        """Return the index after adding documents with these texts.

        Documents are numbered, the old ones first and then the added ones. The documents with the numbers in `kept`
        stay, in the order of `kept`. Learned words are in the `sparse` vectors of the texts. A text that was added
        before the index had learned words has no such vector, and has no terms before the next build.
        """
        rows_of = np.full(self.count + len(texts), -1, np.int32)
        rows_of[kept] = np.arange(len(kept))
        postings = [(np.repeat(self.terms, np.diff(self.starts)), rows_of[self.rows], self.impacts)]
        for number, (row, text) in enumerate(zip(rows_of[self.count :], texts, strict=True)):
            if not self.is_learned:
                found = self.analyzer.terms(text)
                terms, counts = np.unique(found, return_counts=True)
                of_text = impacts(counts, len(found), self.average_length)
            elif (vector := sparse[number]) is not None:
                terms = terms_of(vector.indices)
                of_text = np.clip(np.rint(vector.values / self.step), 1, 255).astype(np.uint8)
            else:
                continue
            postings.append((terms, np.full(len(terms), row, np.int32), of_text))
        terms, rows, steps = (np.concatenate(parts) for parts in zip(*postings, strict=True))
        order = np.lexsort((rows, terms))
        order = order[rows[order] >= 0]
        terms, starts = np.unique(terms[order], return_index=True)
        starts = np.append(starts, len(order))
        return replace(self, count=len(kept), terms=terms, starts=starts, rows=rows[order], impacts=steps[order])

    def _find(self, terms: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the postings of each term begin, and how many there are."""
        begins, ends = (self.starts[np.searchsorted(self.terms, terms, side)] for side in ("left", "right"))
        return begins, ends - begins


def read_description(path: Path) -> dict[str, Any]:
    """Return the description of a lexical index from its file. Raises IndexCorrupt, also for another version."""
    try:
        about: dict[str, Any] = json.loads(path.read_text("utf-8"))
        known = LEARNED_VERSION if about["language"] == LEARNED else VERSION
        if (version := about["version"]) != known:
            raise ValueError(f"its words are of version {excerpt(version)}, this version of Shoal reads {known}")
        if about["language"] not in LANGUAGES:
            raise ValueError(f"language is {excerpt(about['language'])}")
        if min(about["num_terms"], about["num_postings"]) < 0 or not 1 <= about["average_length"] < math.inf:
            raise ValueError("its numbers are out of range")
        if not 0 < about.get("step", IMPACT_STEP) < math.inf:
            raise ValueError(f"step is {excerpt(about['step'])}")
        return about
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise IndexCorrupt(f"{path} cannot be read ({error!s:.200}): build the index again") from error
