"""The searcher: finds the hits of the jobs that a pass has completed."""

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from shoal import logs
from shoal.errors import IndexMismatch, InvalidRequest, NotReady, Overloaded, ShoalError, TooLarge, Unavailable
from shoal.jobs import Job
from shoal.search_options import PLAIN
from shoal_workers.index.index import Index
from shoal_workers.index.ranked_search import SearchAnswer
from shoal_workers.index.second_stage import SecondStage
from shoal_workers.index.serving.open_indexes import find_index
from shoal_workers.process.watchdog import Progress
from shoal_workers.work import Work

log = logging.getLogger(__name__)


class Searcher:
    """The indexes that a worker serves, as its jobs search them. For one thread."""

    def __init__(self, indexes: Mapping[str, Index], progress: Progress):
        self._indexes = indexes
        self._progress = progress

    def search(self, works: Sequence[Work]) -> None:
        """Set the hits of each encoded job or its error, or what it waits for while its index is opened.

        The second stage of a job begins once its hits are found.

        Jobs of one index that ask for about as many hits a query, and for nothing else, are searched for together.
        """
        for work in works:
            if work.second_stage:
                self._rerank(work, work.second_stage)
        groups: dict[tuple[str, int], list[Work]] = {}
        for number, work in enumerate(work for work in works if not work.second_stage):
            is_plain = _is_plain(work.job)
            groups.setdefault((work.job.index, _magnitude(work.job.k) if is_plain else -number), []).append(work)
        for group in groups.values():
            started = time.perf_counter()
            if index := self._opened(group):
                self._search_index(index, group)
                for work in group:
                    work.timings["search_s"] += time.perf_counter() - started

    def _opened(self, group: Sequence[Work]) -> Index | None:
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

    def _opening_of(self, work: Work) -> Future[Index]:
        """Return the index that a job searches, or what becomes it.

        It is opened again if that failed because Redis, which has its changes, was away. Raises what `find_index` does.
        """
        error = work.opening.exception() if work.opening and work.opening.done() else None
        if work.opening and error and not isinstance(error, Unavailable | Overloaded):
            return work.opening
        return find_index(self._indexes, work.job.index, work.job.search.cursor)

    def _search_index(self, index: Index, works: Sequence[Work]) -> None:
        """Find the hits; if that fails, job by job, so that only the job at fault gets an error."""
        self._go_on()
        try:
            if index.group_field or not _is_plain(works[0].job):
                for work in works:
                    self._answer(index, work)
            else:
                queries = np.concatenate([work.vectors() for work in works])
                hits, is_approximate = iter(index.search(queries, max(w.job.k for w in works))), index.is_approximate
                for work in works:
                    found = [next(hits)[: work.job.k] for _ in work.job.texts]
                    work.found = SearchAnswer(found, approximate=is_approximate)
            for work in works:
                work.index_version = index.manifest.version
        except Exception as error:  # any that an index may raise
            if len(works) > 1:
                for work in works:
                    self._search_index(index, [work])
            elif isinstance(error, InvalidRequest | IndexMismatch | NotReady | TooLarge):
                works[0].error = error
            else:
                _fail(works[0], error)

    def _answer(self, index: Index, work: Work) -> None:
        """Find the hits of a job with options, or what the reranker is to score, or its map."""
        if work.job.op == "map":
            work.found = index.answer_map(work.job)
            return
        vectors = work.vectors() if work.job.texts else np.empty((0, index.manifest.dimension), np.float32)
        if not work.job.search.rerank:
            work.found = index.answer(work.job, vectors, self._go_on)
        elif (stage := index.find(work.job, vectors, self._go_on)).pairs:
            work.begin_second_stage(stage)
        else:
            work.found = stage.answer(())

    def _rerank(self, work: Work, stage: SecondStage) -> None:
        """Set the hits of a job whose second stage is done."""
        self._go_on()
        started = time.perf_counter()
        try:
            work.found = stage.answer(work.scores_of_pairs().tolist())
        except InvalidRequest as error:
            work.error = error
        except Exception as error:  # any that an index may raise
            _fail(work, error)
        work.timings["search_s"] += time.perf_counter() - started


def _fail(work: Work, error: Exception) -> None:
    facts = logs.about(work.job.id, work.delivery.client, work.job.traceparent)
    log.error("a search for %d queries failed: %s", len(work.job.texts), logs.places(error), extra=facts)
    work.fail("the search failed", error)


def _is_plain(job: Job) -> bool:
    """Return True for a search without options: those of many jobs are done together."""
    return job.op == "search" and job.search == PLAIN


def _magnitude(k: int) -> int:
    """Return 1 for up to 10 hits, 2 for up to 100, and so on: no query is searched for over ten times its hits."""
    return len(str(k - 1))
