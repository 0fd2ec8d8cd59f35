"""The searcher: finds the hits of the jobs that a pass has completed."""

import logging
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from shoal import logs
from shoal.errors import IndexMismatch, InvalidRequest, NotReady, Overloaded, ShoalError, TooLarge, Unavailable
from shoal.operations import Map, Search
from shoal_workers.index.index import Index
from shoal_workers.index.ranked_search import SearchAnswer
from shoal_workers.index.second_stage import SecondStage
from shoal_workers.index.serving.open_indexes import find_index
from shoal_workers.process.watchdog import Progress
from shoal_workers.search_work import SearchWork

log = logging.getLogger(__name__)


class Searcher:
    """The indexes that a worker serves, as its jobs search them. For one thread."""

    def __init__(self, indexes: Mapping[str, Index], progress: Progress):
        self._indexes = indexes
        self._progress = progress

    def search(self, works: Sequence[SearchWork]) -> None:
        """Set the hits of each encoded job or its error, or what it waits for while its index is opened.

        The second stage of a job begins once its hits are found.

        Jobs of one index that ask for about as many hits a query, and for nothing else, are searched for together.
        Those that are ranked by words too are answered one by one, but share the products of their vectors.
        """
        for work in works:
            if work.second_stage:
                self._rerank(work, work.second_stage)
        groups: dict[tuple[str, Hashable], list[SearchWork]] = {}
        for number, work in enumerate(work for work in works if not work.second_stage):
            groups.setdefault((work.job.index, _kind(work.job, number)), []).append(work)
        for group in groups.values():
            if index := self._opened(group):
                is_plain = group[0].job.is_plain and not index.group_field
                (self._search_together if is_plain else self._search_one_by_one)(index, group)

    def _opened(self, group: Sequence[SearchWork]) -> Index | None:
        """Return the index of these jobs; None if it is being opened, or if they have an error."""
        try:
            opening = self._opening_of(group[0])
            if opening.done():
                return opening.result()
            for work in group:
                work.opening = opening
        except ShoalError as error:  # it is served no more since the jobs were admitted, or cannot be opened
            for work in group:
                work.error = error
        except Exception as error:  # any that opening a version may raise
            for work in group:
                _fail(work, error)
        return None

    def _go_on(self) -> None:
        """Note that a search makes progress: a worker that makes none is ended."""
        self._progress.mark("searching")

    def _opening_of(self, work: SearchWork) -> Future[Index]:
        """Return the index that a job searches, or what becomes it.

        It is opened again if that failed because Redis, which has its changes, was away. Raises what `find_index` does.
        """
        error = work.opening.exception() if work.opening and work.opening.done() else None
        if work.opening and error and not isinstance(error, Unavailable | Overloaded):
            return work.opening
        return find_index(self._indexes, work.job.index, work.job.cursor)

    def _search_together(self, index: Index, works: Sequence[SearchWork]) -> None:
        """Find the hits of plain jobs; if that fails, job by job, so that only the job at fault gets an error."""
        self._go_on()
        started = time.perf_counter()
        try:
            queries = np.concatenate([work.vectors() for work in works])
            ks = [work.job.k for work in works if isinstance(work.job, Search)]
            hits, is_approximate = iter(index.search(queries, max(ks))), index.is_approximate
            for work, k in zip(works, ks, strict=True):
                found = [next(hits)[:k] for _ in work.job.texts]
                work.found = SearchAnswer(found, approximate=is_approximate)
                work.index_version = index.manifest.version
        except Exception as error:  # any that an index may raise
            if len(works) == 1:
                _set_error(works[0], error)
            else:
                for work in works:
                    self._search_together(index, [work])
        for work in works:
            work.timings["search_s"] += time.perf_counter() - started

    def _search_one_by_one(self, index: Index, works: Sequence[SearchWork]) -> None:
        """Find the hits of jobs with options, or what the reranker is to score, or the maps that are asked for."""
        try:
            vectors = [_vectors_of(work, index.manifest.dimension) for work in works]
            with index.shared(np.concatenate(vectors)) as shared:
                for work, of_work in zip(works, vectors, strict=True):
                    with self._searching(work):
                        if isinstance(work.job, Map):
                            work.found = index.answer_map(work.job)
                        elif not work.job.uses_reranker:
                            work.found = index.answer(work.job, of_work, self._go_on, shared)
                        elif (stage := index.find(work.job, of_work, self._go_on, shared)).pairs:
                            work.begin_second_stage(stage)
                        else:
                            work.found = stage.answer(())
                        work.index_version = index.manifest.version
        except Exception as error:  # memory may be short
            for work in works:
                _fail(work, error)

    @contextmanager
    def _searching(self, work: SearchWork) -> Iterator[None]:
        """Time the search of one job, and give the job the error that it raises."""
        self._go_on()
        started = time.perf_counter()
        try:
            yield
        except Exception as error:  # any that an index may raise
            _set_error(work, error)
        work.timings["search_s"] += time.perf_counter() - started

    def _rerank(self, work: SearchWork, stage: SecondStage) -> None:
        """Set the hits of a job whose second stage is done."""
        self._go_on()
        started = time.perf_counter()
        try:
            work.found = stage.answer(work.scores_of_pairs().tolist())
        except Exception as error:  # any that an index may raise
            _set_error(work, error)
        work.timings["search_s"] += time.perf_counter() - started


def _kind(job: Search | Map, number: int) -> Hashable:
    """Return the same for jobs that are searched for in one go; `number` is different for each job.

    No query of a plain job is searched for over ten times its hits: there is a kind for up to 10, up to 100, and so on.
    Jobs with a filter share nothing, as it may leave few documents, nor those with a cursor, which may be of another
    version.
    """
    if isinstance(job, Map):
        return number
    if job.is_plain:
        return "plain", len(str(job.k - 1))
    return "hybrid" if job.search.mode == "hybrid" and not (job.search.filter or job.search.cursor) else number


def _vectors_of(work: SearchWork, dimension: int) -> NDArray[np.float32]:
    """Return the vectors of the texts of a search, which may have none, as a map has none."""
    return work.vectors() if work.job.texts else np.empty((0, dimension), np.float32)


def _set_error(work: SearchWork, error: Exception) -> None:
    if isinstance(error, InvalidRequest | IndexMismatch | NotReady | TooLarge):
        work.error = error
    else:
        _fail(work, error)


def _fail(work: SearchWork, error: Exception) -> None:
    facts = logs.about(work.job.id, work.delivery.client, work.job.traceparent)
    log.error("a search for %d queries failed: %s", len(work.job.texts), logs.places(error), extra=facts)
    work.fail("the search failed", error)
