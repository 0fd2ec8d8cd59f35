"""Postings on the disk, in runs that are each ordered by term: as many as a build has memory for at a time."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal_workers.index.lexical.analyzer import Analyzer
from shoal_workers.index.lexical.document_terms import Postings, count_terms

#: A posting of a run.
_RECORD = np.dtype([("term", "<u8"), ("row", "<i4"), ("count", "<i4")])


class Runs:
    """Postings in a file, in runs that are each ordered by term; `lengths` are the numbers of the documents' terms."""

    def __init__(self, path: Path, analyzer: Analyzer):
        self.lengths: NDArray[np.int32] = np.empty(0, np.int32)
        self._path = path
        self._analyzer = analyzer
        self._sizes: list[int] = []
        self._path.write_bytes(b"")

    @property
    def average_length(self) -> float:
        """The mean number of terms of a document, at least 1."""
        return max(1.0, float(self.lengths.mean()))

    @property
    def num_postings(self) -> int:
        """The number of postings in all runs."""
        return sum(self._sizes)

    def add(self, texts: list[str]) -> None:
        """Count the terms of the next documents."""
        terms = [self._analyzer.terms(text) for text in texts]
        lengths = np.array([len(of_text) for of_text in terms], np.int64)
        postings = count_terms(np.concatenate(terms), lengths, len(self.lengths))
        records = np.empty(len(postings.terms), _RECORD)
        records["term"], records["row"], records["count"] = postings
        with self._path.open("ab") as file:
            file.write(records.tobytes())
        self._sizes.append(len(records))
        self.lengths = np.concatenate([self.lengths, lengths.astype(np.int32)])

    def parts(self, num_parts: int) -> Iterator[Postings]:
        """Yield all postings, ordered by term and then by row, in `num_parts` parts of about the same size."""
        runs = [*self._mapped()]
        limits = [part * 2**64 // num_parts for part in range(1, num_parts)]
        ends = [np.append(np.searchsorted(run["term"], np.array(limits, np.uint64)), len(run)).tolist() for run in runs]
        starts = [0] * len(runs)
        for part in range(num_parts):
            pieces = [run[start : end[part]] for run, start, end in zip(runs, starts, ends, strict=True)]
            starts = [end[part] for end in ends]
            records = np.concatenate(pieces) if pieces else np.empty(0, _RECORD)
            records = records[np.argsort(records["term"], kind="stable")]
            yield Postings(*(np.ascontiguousarray(records[name]) for name in ("term", "row", "count")))

    def _mapped(self) -> Iterator[NDArray[np.void]]:
        start = 0
        for size in self._sizes:
            if size:
                yield np.memmap(self._path, _RECORD, "r", start * _RECORD.itemsize, (size,))
            start += size

    def remove(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)
