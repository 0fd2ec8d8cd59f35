"""Writing the lexical index of a version: terms of documents are counted in runs, and the runs are merged.

For any number of documents, this takes only the memory of one run, or of one part of the merge.
"""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.files.array_file import save_array, write_header
from shoal_workers.index.files.documents import read_lines
from shoal_workers.index.files.manifest import DOCUMENTS, IMPACTS, LEXICAL, POSTINGS, STARTS, TERMS
from shoal_workers.index.lexical.analyzer import NUM_SAMPLED, Analyzer, find_language
from shoal_workers.index.lexical.lexical_index import VERSION, impacts

#: Largest number of documents in a run, and number of characters that ends a run earlier.
_DOCUMENTS_AT_ONCE, _CHARS_AT_ONCE = 16_384, 2**23

#: Approximate number of postings that are merged at a time.
_MERGED_AT_ONCE = 2**23

#: The file with the runs, in the folder of a build.
_RUNS = "postings.runs"

#: A posting of a run: how often a document has a term.
_RECORD = np.dtype([("term", "<u8"), ("row", "<i4"), ("count", "<i4")])


def write_lexical(folder: Path, count: int, language: str | None, report: Callable[[float], object]) -> None:
    """Write the lexical index of a version beside its `count` documents.

    Without a `language`, the language of their words is detected. `report` is called with the part that is done.
    """
    language = language_of(folder, language)
    runs = Runs(folder / _RUNS, Analyzer(language))
    try:
        for texts in _groups(_texts(folder)):
            runs.add(texts)
            report(0.7 * len(runs.lengths) / count)
        num_terms = _merge(runs, folder, lambda part: report(0.7 + 0.3 * part))
    finally:
        runs.path.unlink()
    about = {
        "version": VERSION,
        "language": language,
        "average_length": runs.average_length,
        "num_terms": num_terms,
        "num_postings": runs.num_postings,
    }
    (folder / LEXICAL).write_text(json.dumps(about, indent=2) + "\n", "utf-8")


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
    """Runs of postings in a file, each run ordered by term; `lengths` has the number of terms in each document."""

    def __init__(self, path: Path, analyzer: Analyzer):
        self.path = path
        self.lengths: NDArray[np.int32] = np.empty(0, np.int32)
        self._analyzer = analyzer
        self._sizes: list[int] = []
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
        records = np.empty(len(firsts), _RECORD)
        records["term"], records["row"] = terms[firsts], rows[firsts]
        records["count"] = np.diff(np.append(firsts, len(terms)))
        with self.path.open("ab") as file:
            file.write(records.tobytes())
        self._sizes.append(len(records))
        self.lengths = np.concatenate([self.lengths, lengths])

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
            yield records[np.argsort(records["term"], kind="stable")]


def _merge(runs: Runs, folder: Path, report: Callable[[float], object]) -> int:
    """Write the terms and their postings; return the number of terms."""
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
            lengths = runs.lengths[postings["row"]]
            impacts_file.write(impacts(postings["count"], lengths, runs.average_length).tobytes())
    save_array(folder / TERMS, np.concatenate(terms))
    save_array(folder / STARTS, np.cumsum(np.concatenate(sizes)))
    return sum(map(len, terms))
