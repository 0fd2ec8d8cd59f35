"""Search: the answer is found in an index once the vectors of the texts are known; a reranker may score it."""

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.cache.entry import Entry
from shoal.contract.options import QUERY_PROMPTS
from shoal.contract.replies import finish
from shoal.errors import IndexMismatch, InvalidRequest, NotReady, Overloaded, ShoalError, TooLarge, Unavailable
from shoal.operations import Search
from shoal.process import logs
from shoal.queue.delivery import Delivery
from shoal_workers.encoding.encoder import Pipeline
from shoal_workers.encoding.reranker import sigmoid
from shoal_workers.index.index import Index
from shoal_workers.index.ranked_search import PAIR_OPTIONS, RankedSearch, SearchAnswer
from shoal_workers.index.serving.open_indexes import find_index
from shoal_workers.index.vectors.upper_bounds import SharedProducts
from shoal_workers.operations.work import Work
from shoal_workers.process.watchdog import Progress

if TYPE_CHECKING:
    from shoal_workers.operations.served import Served

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class SearchWork(Work):
    """The work of a search.

    `reranks` is the pipeline of the reranker. The pairs of the `second_stage`, which begins once the hits are found,
    have the numbers after the texts.
    """

    job: Search
    searcher: "Searcher" = field(kw_only=True)
    reranks: Pipeline | None = field(default=None, kw_only=True)
    found: SearchAnswer | None = None
    index_version: str = ""
    second_stage: RankedSearch | None = None

    #: The first of these prompts that the model has goes before a query, if the job names none.
    prompts: ClassVar[tuple[str, ...]] = QUERY_PROMPTS

    @classmethod
    def admit(cls, delivery: Delivery, job: Any, served: "Served") -> Work:
        """Return the work of a job; its index may be opened while the texts are encoded."""
        find_index(served.searcher.indexes, job.index, job.cursor)
        reranks = served.reranker(job.reranker) if job.uses_reranker else None
        prompt = served.embeds.encoder.prompt(job.options, cls.prompts)
        return cls(delivery, job, served.embeds, prompt, served.now, searcher=served.searcher, reranks=reranks)

    @property
    def next_stage(self) -> Callable[[Sequence["SearchWork"]], object]:
        """The search in the index."""
        return self.searcher.search

    @property
    def has_result(self) -> bool:
        """True once the hits are found, and scored if a reranker is to do so."""
        return self.found is not None

    def vectors(self) -> NDArray[np.float32]:
        """Return the vectors of the queries, `[texts, dimension]`."""
        if not self.job.texts:
            return np.empty((0, self.pipeline.encoder.model.dimension), np.float32)
        return finish([entry.vectors for entry in self.entries()], self.job.options)

    def group(self, number: int) -> Hashable:
        """Return the same for jobs that are searched for in one go; `number` is different for each job.

        No query of a plain job is searched for over ten times its hits: there is a group for up to 10, up to 100, and
        so on. Jobs with a filter share nothing, as it may leave few documents, nor those with a cursor, which may be of
        another version.
        """
        job = self.job
        if job.is_plain:
            return "plain", len(str(job.k - 1))
        return "hybrid" if job.search.mode == "hybrid" and not (job.search.filter or job.search.cursor) else number

    def find(
        self, index: Index, vectors: NDArray[np.float32], go_on: Callable[[], None], shared: SharedProducts
    ) -> None:
        """Find the answer in the index, or the pairs that the reranker is to score, by the vectors of the texts."""
        found = index.find(self.job, vectors, go_on, shared)
        if self.reranks and (pairs := found.pairs()):
            self.second_stage, self.pipeline, self.options = found, self.reranks, PAIR_OPTIONS
            self.untokenized.extend(range(len(self.inputs), len(self.inputs) + len(pairs)))
            self.inputs = [*self.inputs, *pairs]
        else:
            self.found = found.answer()
        self.index_version = index.manifest.version

    def use_scores(self, stage: RankedSearch) -> None:
        """Make the answer of the scores of the stage's pairs, once all have one."""
        vectors = (text.vectors for n, text in sorted(self.tokenized.items()) if n >= len(self.job.texts))
        scores = np.array([scored[0, 0] for scored in vectors if scored is not None], np.float32)
        self.found = stage.answer(sigmoid(scores).tolist())

    def _own_result(self, entries: Sequence[Entry]) -> dict[str, Any]:
        assert self.found is not None
        names = ("hits", "cursors", "totals", "facets")
        return {name: getattr(self.found, name) for name in names} | {"index_version": self.index_version}


class Searcher:
    """The indexes that a worker serves, as its jobs search them. For one thread."""

    def __init__(self, indexes: Mapping[str, Index], progress: Progress):
        self.indexes = indexes
        self._progress = progress

    def search(self, works: Sequence[SearchWork]) -> None:
        """Set the hits of each encoded job or its error, or what it waits for while its index is opened.

        The second stage of a job begins once its hits are found.

        Jobs of one index that ask for about as many hits a query, and for nothing else, are searched for together.
        Those that are ranked by words too are answered one by one, but share the products of their vectors.
        """
        groups: dict[tuple[str, Hashable], list[SearchWork]] = {}
        for number, work in enumerate(works):
            if work.second_stage:
                with self._searching([work]):
                    work.use_scores(work.second_stage)
            else:
                groups.setdefault((work.job.index, work.group(number)), []).append(work)
        for group in groups.values():
            if index := self._opened(group):
                is_plain = group[0].job.is_plain and not index.group_field
                (self._search_together if is_plain else self._search_one_by_one)(index, group)

    def _opened(self, group: Sequence[SearchWork]) -> Index | None:
        """Return the index of these jobs; None if it is being opened, or if they have an error."""
        known = group[0].opening
        failure = known.exception() if known and known.done() else None
        try:
            if failure and not isinstance(failure, Unavailable | Overloaded):
                raise failure
            # It is opened again if Redis, which has its changes, was away.
            opening = find_index(self.indexes, group[0].job.index, group[0].job.cursor)
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

    def _search_together(self, index: Index, works: Sequence[SearchWork]) -> None:
        """Find the hits of plain jobs; if that fails, job by job, so that only the job at fault gets an error."""
        with self._searching(works):
            queries = np.concatenate([work.vectors() for work in works])
            hits = iter(index.search(queries, max(work.job.k for work in works)))
            for work in works:
                work.found = SearchAnswer([next(hits)[: work.job.k] for _ in work.job.texts])
                work.index_version = index.manifest.version
        if len(works) > 1:
            for work in works:
                if not work.found:
                    self._search_together(index, [work])

    def _search_one_by_one(self, index: Index, works: Sequence[SearchWork]) -> None:
        """Find the answers to jobs with options, or what the reranker is to score."""
        try:
            vectors = [work.vectors() for work in works]
            with index.shared(np.concatenate(vectors)) as shared:
                for work, of_work in zip(works, vectors, strict=True):
                    with self._searching([work]):
                        work.find(index, of_work, self._go_on, shared)
        except Exception as error:  # memory may be short
            for work in works:
                _fail(work, error)

    @contextmanager
    def _searching(self, works: Sequence[SearchWork]) -> Iterator[None]:
        """Time the search of these jobs; if there is one, give it the error that the search raises."""
        self._go_on()
        started = time.perf_counter()
        try:
            yield
        except Exception as error:  # any that an index may raise
            if len(works) == 1 and isinstance(error, InvalidRequest | IndexMismatch | NotReady | TooLarge):
                works[0].error = error
            elif len(works) == 1:
                _fail(works[0], error)
        for work in works:
            work.timings["search_s"] += time.perf_counter() - started


def _fail(work: SearchWork, error: Exception) -> None:
    facts = logs.about(work.job.id, work.delivery.client, work.job.traceparent)
    log.error("a search for %d queries failed: %s", len(work.job.texts), logs.places(error), extra=facts)
    work.fail("the search failed", error)
