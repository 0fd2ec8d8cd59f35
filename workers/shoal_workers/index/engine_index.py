"""A version of an index whose vectors and documents are in a vector engine, which answers searches."""

import json
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexCorrupt, InvalidRequest, Unavailable
from shoal.operations import Search
from shoal.operations.search_filter import parse_filter
from shoal.process import logs
from shoal_workers.index.engines.engine import check_address, open_table
from shoal_workers.index.engines.fields import written
from shoal_workers.index.files.checksums import FileCheck
from shoal_workers.index.files.columns import Columns
from shoal_workers.index.files.manifest import Manifest
from shoal_workers.index.index import Index, checked_files
from shoal_workers.index.query import Query, queries_of
from shoal_workers.index.ranked_search import SearchAnswer
from shoal_workers.index.search.live_documents import LiveDocuments
from shoal_workers.index.vectors.exact_search import ONE_THREAD, SearchThreads

if TYPE_CHECKING:
    from shoal_workers.index.engines.pgvector import Found, Table

log = logging.getLogger(__name__)

#: The options of a search that an index in an engine takes.
OPTIONS = {"filter", "fields", "min_score", "vectors", "num_negative", "fuse", "rerank"}

#: After a call without an answer, searches fail at once for this many seconds, so that they do not pile up.
RETRY_AFTER_S = 1.0


class EngineIndex(Index):
    """A version in a vector engine. It has no vector files, so only these methods of an index can be used."""

    def __init__(self, folder: Path, manifest: Manifest, files: FileCheck, password: str):
        self.folder, self.manifest, self.files = folder, manifest, files
        check_address(manifest.engine)
        self.columns = Columns.without_rows(folder)
        self.live = LiveDocuments.none(manifest.changes_through, manifest.dimension, None)
        self._fields = (self.live, None)
        self._password, self._fails_until = password, 0.0
        self._calls = ThreadPoolExecutor(1, "engine")  # one thread: after an outage, waiting calls fail at once

    @cached_property
    def _table(self) -> "Table":
        return open_table(self.manifest.engine, self._password)

    def warm_up(self) -> None:
        """Load the client of the engine. Raises MissingExtra."""
        _ = self._table

    def ask(self, jobs: Sequence[Search], vectors: Sequence[NDArray[np.float32]]) -> list["EngineSearch"]:
        """Begin the search of several plain jobs, or of one job. `vectors` has the vectors of each job's texts.

        Raises InvalidRequest for an option that the engine does not take, or that does not fit the index.
        """
        options, fields = jobs[0].search, self.fields_at(self.live)
        if refused := {name for name in options.to_map().keys() - OPTIONS if (name, options.mode) != ("mode", "dense")}:
            raise InvalidRequest(
                f"{min(refused)} does not work with this index, which is in pgvector: leave it out, or search an "
                "index that the workers have in files"
            )
        fields.check_hits(options.fields)
        wanted = None
        if options.filter is not None:
            wanted = written(parse_filter(options.filter), fields)
        queries = [queries_of(job, own, (), self, self.live) for job, own in zip(jobs, vectors, strict=True)]
        k = max(_num_found(job) for job in jobs)
        together = np.array([query.vector for own in queries for query in own], np.float32)
        found, starts = self._calls.submit(self._search, together, k, wanted), np.cumsum([0, *map(len, queries)])
        return [EngineSearch(self, *one, found) for one in zip(jobs, queries, starts.tolist(), strict=False)]

    def _search(self, queries: NDArray[np.float32], k: int, wanted: str | None) -> "Found":
        """Call the engine. Raises Unavailable if it does not answer, and IndexCorrupt if it lacks rows."""
        away = Unavailable("pgvector, which has the index, does not answer: start it, or check its password")
        if time.monotonic() < self._fails_until:
            raise away
        try:
            return self._table.search(queries, k, wanted)
        except self._table.outages as error:
            self._fails_until = time.monotonic() + RETRY_AFTER_S
            log.warning("%s does not answer: %s", self.manifest.engine, logs.places(error))
            raise away from error
        except self._table.refusals:
            if (count := self._table.count()) < (wanted_count := self.manifest.count):
                raise IndexCorrupt(
                    f"pgvector has {count:,} of {wanted_count:,} rows of the index: push it again"
                ) from None
            raise


class EngineSearch:
    """The search of one job in an engine. `found` is the future of the engine's answer, which may serve several jobs.

    The lists of this job begin at position `start` in the answer. `answer` and `pairs` raise the errors of the call.
    """

    def __init__(self, index: EngineIndex, job: Search, queries: list[Query], start: int, found: "Future[Found]"):
        self.index, self.found, self.started = index, found, time.perf_counter()
        self._job, self._queries, self._start = job, queries, start

    @cached_property
    def _lists(self) -> list[list[dict[str, Any]]]:
        least = -np.inf if self._job.search.min_score is None else self._job.search.min_score
        lists = []
        for rows in self.found.result()[self._start : self._start + len(self._queries)]:
            found = [(score, json.loads(text)) for score, text in rows[: _num_found(self._job)] if score >= least]
            lists.append([{"id": document.pop("id"), "score": score, **document} for score, document in found])
        return lists

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs that the reranker is to score, list by list: a query and the text of a hit."""
        asked = (self._job.search.rerank or {}).get("query")
        lists = zip(self._queries, self._lists, strict=True)
        return [(asked or "\n".join(query.texts), hit["text"]) for query, hits in lists for hit in hits]

    def token_codes(self, digest: str) -> dict[int, NDArray[np.int8]]:
        """Return no codes, because an engine has no token vectors."""
        return {}

    def answer(self, scores: Sequence[float] | None = None) -> SearchAnswer:
        """Return the answer with the best hits; `scores` are the reranker's scores of all `pairs`, if there are any."""
        lists, names = self._lists, self._job.search.fields
        if scores is not None:
            rest = iter(scores)
            scored = [[{**hit, "score": next(rest)} for hit in hits] for hits in lists]
            lists = [sorted(hits, key=lambda hit: -hit["score"]) for hits in scored]
        best = [hits[: self._job.k] for hits in lists]
        if names is not None:
            kept = ("id", "score", *names)
            best = [[{name: hit[name] for name in kept if name in hit} for hit in hits] for hits in best]
        return SearchAnswer(best)


def _num_found(job: Search) -> int:
    """Return the number of hits to find for each list of a job, before reranking."""
    return int((job.search.rerank or {}).get("top_n", job.k))


def open_version(version: Path, threads: SearchThreads = ONE_THREAD, password: str = "") -> Index:
    """Open the version in a folder. If an engine has its rows, the engine is not called. Raises IndexCorrupt."""
    if Manifest.read(version).engine:
        try:
            return EngineIndex(version, *checked_files(version), password)
        except InvalidRequest as error:
            raise IndexCorrupt(f"{version} cannot be searched, because {error.message}: publish another") from error
    return Index.open_version(version, threads)
