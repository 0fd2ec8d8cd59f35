"""Writing the lexical index of a version: terms of documents are counted in runs, and the runs are merged.

For any number of documents, this takes only the memory of one run, or of one part of the merge.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.contract.languages import LEARNED
from shoal.contract.vectors import SparseVector
from shoal.errors import IndexCorrupt
from shoal_workers.index.files.array_file import save_array, write_header
from shoal_workers.index.files.documents import read_lines
from shoal_workers.index.files.manifest import (
    DOCUMENTS,
    IMPACTS,
    LEXICAL,
    LEXICAL_FILES,
    POSTINGS,
    STARTS,
    TERMS,
    Manifest,
)
from shoal_workers.index.lexical.analyzer import NUM_SAMPLED, Analyzer, find_language
from shoal_workers.index.lexical.lexical_index import LEARNED_VERSION, VERSION, LexicalIndex, impacts, terms_of

#: Largest number of documents in a run, and number of characters that ends a run earlier.
_DOCUMENTS_AT_ONCE, _CHARS_AT_ONCE = 16_384, 2**23

#: Approximate number of postings that are merged at a time.
_MERGED_AT_ONCE = 2**23

#: The file with the runs, in the folder of a build.
_RUNS = "postings.runs"

#: A posting of a run: how often a document has a term, or the learned weight of a token in units of `_UNIT`.
_RECORD = np.dtype([("term", "<u8"), ("row", "<i4"), ("count", "<i4")])
_UNIT = 2.0**-20

#: The file in a build's folder with the weights of new texts: a record is the weight of a token in text `number`.
WEIGHTS = "weights.records"
WEIGHT = np.dtype([("token", "<i4"), ("number", "<i4"), ("weight", "<f4")])


def write_lexical(folder: Path, count: int, language: str | None, report: Callable[[float], object]) -> None:
    """Write the lexical index of a version beside its `count` documents.

    Without a `language`, the language of their words is detected. `report` is called with the fraction that is done.
    """
    language = language_of(folder, language)
    runs = Runs(folder / _RUNS, Analyzer(language))
    try:
        for texts in _groups(_texts(folder)):
            runs.add(texts)
            report(0.7 * len(runs.lengths) / count)
        about = {"version": VERSION, "language": language, "average_length": runs.average_length}

        def impacts_of(postings: NDArray[np.void]) -> NDArray[np.uint8]:
            return impacts(postings["count"], runs.lengths[postings["row"]], runs.average_length)

        _merge(runs, folder, impacts_of, about, lambda part: report(0.7 + 0.3 * part))
    finally:
        runs.path.unlink()


def weights_of(vectors: Sequence[SparseVector], first_number: int) -> NDArray[np.void]:
    """Return the weights in the sparse vectors of texts that are numbered from `first_number`: `WEIGHT` `[weights]`."""
    found = np.empty(sum(len(vector.indices) for vector in vectors), WEIGHT)
    if len(found):
        found["token"] = np.concatenate([vector.indices for vector in vectors])
        found["weight"] = np.concatenate([vector.values for vector in vectors])
        numbers = np.arange(first_number, first_number + len(vectors))
        found["number"] = np.repeat(numbers, [len(vector.indices) for vector in vectors])
    return found


def write_learned(
    folder: Path,
    taken_from: NDArray[np.int64],
    former: LexicalIndex | None,
    report: Callable[[float], object],
) -> None:
    """Write the lexical index of a version with learned words.

    For each row, `taken_from` has a row of the `former` version, whose postings are reused, or -1 - n for the text with
    the number n in the file of new texts' weights.
    """
    num_weights = (folder / WEIGHTS).stat().st_size // WEIGHT.itemsize
    runs, order = Runs(folder / _RUNS, None), np.argsort(taken_from, kind="stable")
    sources = taken_from[order]

    def add(terms: NDArray[Any], places: NDArray[np.integer], weights: NDArray[np.floating]) -> None:
        """Add a run: each row whose source is one of `places` gets the terms and weights at the same positions."""
        first, end = (np.searchsorted(sources, places, side) for side in ("left", "right"))
        num_rows = end - first
        # The positions from `first` to `end` of each source, one after the other.
        rows = order[np.arange(num_rows.sum()) + np.repeat(end - np.cumsum(num_rows), num_rows)]
        counts = np.clip(np.rint(weights / _UNIT), 1, 2**31 - 1)
        runs.add_counts(np.repeat(terms, num_rows), rows, np.repeat(counts, num_rows))

    try:
        for start in range(0, len(former.rows) if former else 0, _MERGED_AT_ONCE):
            assert former
            part = slice(start, min(start + _MERGED_AT_ONCE, len(former.rows)))
            numbers = np.searchsorted(former.starts, np.arange(part.start, part.stop), "right") - 1
            add(former.terms[numbers], former.rows[part], former.impacts[part] * former.step)
        for start in range(0, num_weights, _MERGED_AT_ONCE):
            report(0.5 * start / num_weights)
            found = np.fromfile(
                folder / WEIGHTS, WEIGHT, min(_MERGED_AT_ONCE, num_weights - start), offset=start * WEIGHT.itemsize
            )
            terms = terms_of(found["token"])
            by_term = np.argsort(terms, kind="stable")
            add(terms[by_term], -1 - found["number"][by_term], found["weight"][by_term])
        about = {"version": LEARNED_VERSION, "language": LEARNED, "average_length": 1.0}
        about["step"] = runs.largest * _UNIT / 255

        def impacts_of(postings: NDArray[np.void]) -> NDArray[np.uint8]:
            return np.maximum(1, np.rint(postings["count"] * (255 / runs.largest))).astype(np.uint8)

        _merge(runs, folder, impacts_of, about, lambda part: report(0.5 + 0.5 * part))
    finally:
        runs.path.unlink()


def learned_words(version: Path) -> LexicalIndex | None:
    """Return the lexical index of a version if its words are learned and its files are undamaged."""
    manifest = Manifest.read(version)
    try:
        manifest.check(version, LEXICAL_FILES)
        found = LexicalIndex.open(version, manifest.count)
    except IndexCorrupt:
        return None
    return found if found.is_learned else None


def language_of(folder: Path, language: str | None) -> str:
    """Return the language of a version's documents: the given one, or else the detected one."""
    return language or find_language(islice(_texts(folder), NUM_SAMPLED))


def _texts(folder: Path) -> Iterator[str]:
    return (line["text"] for line in read_lines(folder / DOCUMENTS))


def _groups(texts: Iterator[str]) -> Iterator[list[str]]:
    """Yield texts in groups that fit into memory."""
    group: list[str] = []
    num_chars = 0
    for text in texts:
        group.append(text)
        num_chars += len(text)
        if len(group) == _DOCUMENTS_AT_ONCE or num_chars >= _CHARS_AT_ONCE:
            yield group
            group, num_chars = [], 0
    if group:
        yield group


class Runs:
    """Runs of postings in a file, each run ordered by term; `lengths` has the number of terms in each document.

    With learned words, there is no analyzer, there are no lengths, and runs may have their rows in any order.
    """

    def __init__(self, path: Path, analyzer: Analyzer | None):
        self.path = path
        self.lengths: NDArray[np.int32] = np.empty(0, np.int32)
        self._analyzer = analyzer
        self._sizes: list[int] = []
        self.largest = 1  # the largest count
        path.write_bytes(b"")

    @property
    def average_length(self) -> float:
        """The mean number of terms in a document, at least 1."""
        return max(1.0, float(self.lengths.mean()))

    @property
    def num_postings(self) -> int:
        """The number of postings in all runs."""
        return sum(self._sizes)

    def add(self, texts: list[str]) -> None:
        """Add a run: count the terms of the next documents."""
        assert self._analyzer
        found = [self._analyzer.terms(text) for text in texts]
        lengths = np.array([len(of_text) for of_text in found], np.int32)
        first_row = len(self.lengths)
        rows = np.repeat(np.arange(first_row, first_row + len(texts), dtype=np.int32), lengths)
        terms = np.concatenate(found)
        order = np.argsort(terms, kind="stable")
        terms, rows = terms[order], rows[order]
        is_first = np.ones(len(terms), bool)
        is_first[1:] = (terms[1:] != terms[:-1]) | (rows[1:] != rows[:-1])
        firsts = np.flatnonzero(is_first)
        self.add_counts(terms[firsts], rows[firsts], np.diff(np.append(firsts, len(terms))))
        self.lengths = np.concatenate([self.lengths, lengths])

    def add_counts(self, terms: NDArray[Any], rows: NDArray[np.integer], counts: NDArray[Any]) -> None:
        """Add a run of postings, which are ordered by term."""
        records = np.empty(len(terms), _RECORD)
        records["term"], records["row"], records["count"] = terms, rows, counts
        with self.path.open("ab") as file:
            file.write(records.tobytes())
        self._sizes.append(len(records))
        self.largest = max(self.largest, int(records["count"].max(initial=1)))

    def parts(self, num_parts: int) -> Iterator[NDArray[np.void]]:
        """Yield all postings, ordered by term and then by row, in `num_parts` parts of about the same size."""
        places = np.cumsum([0, *self._sizes]) * _RECORD.itemsize
        runs = [
            np.memmap(self.path, _RECORD, "r", place, (size,))
            for place, size in zip(places.tolist(), self._sizes, strict=False)
            if size
        ]
        limits = [part * 2**64 // num_parts for part in range(1, num_parts)]
        ends = [np.append(np.searchsorted(run["term"], np.array(limits, np.uint64)), len(run)).tolist() for run in runs]
        starts = [0] * len(runs)
        for part in range(num_parts):
            pieces = [run[start : end[part]] for run, start, end in zip(runs, starts, ends, strict=True)]
            starts = [end[part] for end in ends]
            records = np.concatenate([np.empty(0, _RECORD), *pieces])
            if self._analyzer:
                yield records[np.argsort(records["term"], kind="stable")]
            else:
                yield records[np.lexsort((records["row"], records["term"]))]


def _merge(
    runs: Runs,
    folder: Path,
    impacts_of: Callable[[NDArray[np.void]], NDArray[np.uint8]],
    about: dict[str, Any],
    report: Callable[[float], object],
) -> None:
    """Write the terms and their postings, and then the description, which has the values in `about`."""
    num_parts = 1 + runs.num_postings // _MERGED_AT_ONCE
    terms, sizes = [np.empty(0, np.uint64)], [np.zeros(1, np.int64)]
    with (folder / POSTINGS).open("wb") as rows_file, (folder / IMPACTS).open("wb") as impacts_file:
        write_header(rows_file, np.int32, (runs.num_postings,))
        write_header(impacts_file, np.uint8, (runs.num_postings,))
        for part, postings in enumerate(runs.parts(num_parts)):
            report(part / num_parts)
            of_part, sizes_of_part = np.unique(postings["term"], return_counts=True)
            terms.append(of_part)
            sizes.append(sizes_of_part)
            rows_file.write(postings["row"].tobytes())
            impacts_file.write(impacts_of(postings).tobytes())
    save_array(folder / TERMS, np.concatenate(terms))
    save_array(folder / STARTS, np.cumsum(np.concatenate(sizes)))
    about = {**about, "num_terms": sum(map(len, terms)), "num_postings": runs.num_postings}
    (folder / LEXICAL).write_text(json.dumps(about, indent=2) + "\n", "utf-8")
