"""Writing the lexical index of a version: the terms of its documents are counted in runs, which are then merged.

Memory is that of one run or of one part of the merge, whatever the number of documents.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shoal_workers.index.files.array_file import save_array, write_header
from shoal_workers.index.files.json_lines import read_lines
from shoal_workers.index.files.manifest import DOCUMENTS, IMPACTS, LEXICAL, POSTINGS, STARTS, TERMS
from shoal_workers.index.lexical.analyzer import NUM_SAMPLED, Analyzer, find_language
from shoal_workers.index.lexical.bm25 import impacts
from shoal_workers.index.lexical.lexical_index import VERSION
from shoal_workers.index.lexical.runs import Runs

#: Documents whose terms are counted at a time, and the characters of theirs that end a run earlier.
_DOCUMENTS_AT_ONCE, _CHARS_AT_ONCE = 16_384, 2**23

#: Postings that are merged at a time, about.
_MERGED_AT_ONCE = 2**23

#: The file of the runs, in the folder of a build.
_RUNS = "postings.runs"


def write_lexical(folder: Path, count: int, language: str | None, report: Callable[[float], object]) -> None:
    """Write the lexical index of a version beside its `count` documents.

    Without the `language` of their words, it is found. `report` is called with the part that is done.
    """
    language = language_of(folder, language)
    runs = Runs(folder / _RUNS, Analyzer(language))
    try:
        for texts in _groups(_texts(folder)):
            runs.add(texts)
            report(0.7 * len(runs.lengths) / count)
        num_terms = _merge(runs, folder, lambda part: report(0.7 + 0.3 * part))
    finally:
        runs.remove()
    about = {
        "version": VERSION,
        "language": language,
        "average_length": runs.average_length,
        "num_terms": num_terms,
        "num_postings": runs.num_postings,
    }
    (folder / LEXICAL).write_text(json.dumps(about, indent=2) + "\n", "utf-8")


def language_of(folder: Path, language: str | None) -> str:
    """Return the language of a version's documents: the one that is given, or else the one that is found."""
    return language or find_language(islice(_texts(folder), NUM_SAMPLED))


def _texts(folder: Path) -> Iterator[str]:
    return (line["text"] for line in read_lines(folder / DOCUMENTS))


def _groups(texts: Iterator[str]) -> Iterator[list[str]]:
    """Yield texts in groups that are small enough to be in memory."""
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


def _merge(runs: Runs, folder: Path, report: Callable[[float], object]) -> int:
    """Write the terms and their postings; return the number of terms."""
    num_parts = 1 + runs.num_postings // _MERGED_AT_ONCE
    terms: list[NDArray[np.uint64]] = []
    sizes: list[NDArray[np.int64]] = []
    with (folder / POSTINGS).open("wb") as rows_file, (folder / IMPACTS).open("wb") as impacts_file:
        write_header(rows_file, np.int32, (runs.num_postings,))
        write_header(impacts_file, np.uint8, (runs.num_postings,))
        for part, postings in enumerate(runs.parts(num_parts)):
            report(part / num_parts)
            of_part, sizes_of_part = np.unique(postings.terms, return_counts=True)
            terms.append(of_part)
            sizes.append(sizes_of_part)
            rows_file.write(postings.rows.tobytes())
            lengths = runs.lengths[postings.rows]
            impacts_file.write(impacts(postings.counts, lengths, runs.average_length).tobytes())
    save_array(folder / TERMS, _joined(terms, np.uint64))
    save_array(folder / STARTS, np.concatenate([np.zeros(1, np.int64), np.cumsum(_joined(sizes, np.int64))]))
    return sum(map(len, terms))


def _joined(arrays: Sequence[NDArray[Any]], dtype: DTypeLike) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *arrays])
