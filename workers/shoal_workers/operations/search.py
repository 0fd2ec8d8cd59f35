"""Search: the query vectors are looked up in an index, and a reranker may score the hits."""

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shoal.contract.options import QUERY_PROMPTS
from shoal.contract.vectors import cut_and_normalise
from shoal.errors import Overloaded, ShoalError, Unavailable
from shoal.operations import Search
from shoal.process import logs
from shoal.queue.consumer import Delivery
from shoal_workers.encoding.encoder import Pipeline
from shoal_workers.index.engine_index import EngineIndex, EngineSearch
from shoal_workers.index.index import Index
from shoal_workers.index.ranked_search import PAIR_OPTIONS, RankedSearch, SearchAnswer
from shoal_workers.index.serving.open_indexes import find_index
from shoal_workers.index.vectors.upper_bounds import SharedProducts
from shoal_workers.operations.rerank import PairsWork
from shoal_workers.operations.work import Work
from shoal_workers.process.watchdog import Activity

if TYPE_CHECKING:
    from shoal_workers.loop.admission import Served

log = logging.getLogger(__name__)


@dataclass(eq=False)
class SearchWork(PairsWork):
    """The work of a search job.

    `reranks` is the pipeline of the reranker. The `second_stage`, which reranks the hits, begins once they are found.
    Its pairs are numbered after the texts. `asked` is the search in a vector engine, once it has begun.
    """

    job: Search
    reranks: Pipeline | None = field(default=None, kw_only=True)
    found: SearchAnswer | None = None
    index_version: str = ""
    second_stage: RankedSearch | EngineSearch | None = None
    asked: EngineSearch | None = None

    @classmethod
    def of_job(cls, delivery: Delivery, job: Any, served: "Served") -> Work:
        """Return the work of a job; raise the error of an unknown index. The index may open while texts are encoded."""
        opening = find_index(served.searcher.indexes, job.index)
        reranks = served.reranker() if job.search.rerank else None
        prompt = served.embeds.encoder.prompt(job.options, QUERY_PROMPTS)
        work = cls(delivery, job, served.embeds, prompt, served.now, reranks=reranks)
        work.is_query, work.stage = served.embeds.encoder.model.has_query_table, served.searcher.search
        if work.can_weigh_words and (not opening.done() or opening.exception() or opening.result().has_learned_words):
            work.weigh_words()
        return work

    @property
    def can_weigh_words(self) -> bool:
        """True if the search is by words, and the model makes sparse vectors."""
        model, search = self.pipeline.encoder.model, self.job.search
        is_by_words = search.mode not in (None, "dense") or search.snippet is not None or not model.pooling
        return is_by_words and "sparse" in model.outputs

    def weigh_words(self) -> None:
        """Have all texts encoded again, with their sparse vectors."""
        has_vectors = self.pipeline.encoder.model.pooling
        self.options = replace(self.job.options, output=("vector", "sparse") if has_vectors else "sparse")
        self.untokenized = deque(range(len(self.inputs)))

    def vectors(self) -> NDArray[np.float32]:
        """Return the vectors of the queries, `[texts, dimension]`."""
        model = self.pipeline.encoder.model
        if not self.job.texts or not model.pooling:
            return np.empty((len(self.job.texts), model.dimension if model.pooling else 0), np.float32)
        return cut_and_normalise([self.entries[n].vectors for n in range(len(self.job.texts))], self.job.options)

    def group(self, number: int) -> Hashable:
        """Return a key that is equal for jobs that are searched together. `number` is different for each job.

        Plain jobs for up to 10 hits are one group, plain jobs for up to 100 hits are another, and so on, so that a
        search finds at most ten times as many hits as a job asks for. A job with a filter is alone because its filter
        may leave few documents.
        """
        job = self.job
        if job.is_plain:
            return "plain", len(str(job.k - 1))
        return "hybrid" if job.search.mode == "hybrid" and not job.search.filter else number

    def find(
        self, index: Index, vectors: NDArray[np.float32], go_on: Callable[[], None], shared: SharedProducts
    ) -> None:
        """Search the index by the vectors of the texts; set the answer, or add the pairs for the reranker."""
        texts = [self.encoded[number] for number in range(len(self.job.texts)) if number in self.encoded]
        sparse = [text.made["sparse"] for text in texts if "sparse" in text.made]
        if index.has_learned_words and self.can_weigh_words and len(sparse) < len(self.job.texts):
            self.weigh_words()  # the version was published after the job was admitted
            return
        self.take(index.find(self.job, vectors, go_on, shared, sparse), index)

    def take(self, found: RankedSearch | EngineSearch, index: Index) -> None:
        """Set the answer with the hits that were found, or add the pairs for the reranker."""
        if self.reranks and (pairs := found.pairs()):
            self.second_stage, self.pipeline, self.options = found, self.reranks, PAIR_OPTIONS
            self.add_pairs(pairs, found.token_codes(self.reranker.token_digest))
        else:
            self.end(found.answer())
        self.index_version = index.manifest.version

    def end(self, found: SearchAnswer) -> None:
        """Set the answer, and end the last stage of the job."""
        self.found, self.stage = found, None

    def _result(self) -> dict[str, Any]:
        found = {name: getattr(self.found, name) for name in ("hits", "cursors", "totals", "facets")}
        return super()._result() | found | {"index_version": self.index_version}


class Searcher:
    """Searches a worker's indexes for jobs. Not thread-safe."""

    def __init__(self, indexes: Mapping[str, Index], activity: Activity):
        self.indexes = indexes
        self._activity = activity

    def search(self, works: Sequence[SearchWork]) -> None:
        """Set the hits or the error of each encoded job, or its `opening` if its index is still being opened.

        A job in its second stage gets its answer from the scores of its pairs. Jobs that ask the same index for about
        the same number of hits, and have no further options, are searched together. Hybrid searches are answered one by
        one, but share the products of their vectors.
        """
        groups: dict[tuple[str, Hashable], list[SearchWork]] = {}
        for number, work in enumerate(works):
            if work.second_stage:
                with self._searching([work]):
                    work.end(work.second_stage.answer(work.scores().tolist()))
            elif work.asked:
                with self._searching([work], work.asked.started):
                    work.take(work.asked, work.asked.index)
            else:
                groups.setdefault((work.job.index, work.group(number)), []).append(work)
        for group in groups.values():
            index = self._opened(group)
            if isinstance(index, EngineIndex):
                for works_together in [group] if group[0].job.is_plain else [[work] for work in group]:
                    self._ask(index, works_together)
            elif index:
                is_plain = group[0].job.is_plain and not index.group_field and index.default_mode == "dense"
                (self._search_together if is_plain else self._search_one_by_one)(index, group)

    def _opened(self, group: Sequence[SearchWork]) -> Index | None:
        """Return the index of these jobs. If it is not open, set the jobs' `opening` or error, and return None."""
        known = group[0].opening
        failure = known.exception() if known and known.done() else None
        try:
            if failure and not isinstance(failure, Unavailable | Overloaded):
                raise failure
            # After a failure to read the index's changes from Redis, the index is opened again.
            opening = find_index(self.indexes, group[0].job.index)
            if opening.done():
                return opening.result()
            for work in group:
                work.opening = opening
        except Exception as error:  # the index is no longer served, or opening it raised any exception
            for work in group:
                _fail(work, error)
        return None

    def _go_on(self) -> None:
        """Record that a search makes progress, so that the watchdog does not end the worker."""
        self._activity.mark("searching")

    def _search_together(self, index: Index, works: Sequence[SearchWork]) -> None:
        """Find the hits of plain jobs together. If that fails, search job by job, so that only the faulty job fails."""
        with self._searching(works):
            queries = np.concatenate([work.vectors() for work in works])
            hits = iter(index.search(queries, max(work.job.k for work in works)))
            for work in works:
                work.end(SearchAnswer([next(hits)[: work.job.k] for _ in work.job.texts]))
                work.index_version = index.manifest.version
        if len(works) > 1:
            for work in works:
                if not work.found:
                    self._search_together(index, [work])

    def _ask(self, index: EngineIndex, works: Sequence[SearchWork]) -> None:
        """Begin the search of these jobs in a vector engine. Its result is awaited in `opening`, like an index."""
        with self._searching(works):
            searches = index.ask([work.job for work in works], [work.vectors() for work in works])
            for work, search in zip(works, searches, strict=True):
                work.asked, work.opening = search, search.found
        if len(works) > 1 and not works[0].asked:
            for work in works:
                self._ask(index, [work])

    def _search_one_by_one(self, index: Index, works: Sequence[SearchWork]) -> None:
        """Find the answers to jobs with options, or the pairs for the reranker."""
        try:
            vectors = [work.vectors() for work in works]
            with index.exact_search.shared(np.concatenate(vectors)) as shared:
                for work, queries in zip(works, vectors, strict=True):
                    with self._searching([work]):
                        work.find(index, queries, self._go_on, shared)
        except Exception as error:  # for example, too little memory
            for work in works:
                _fail(work, error)

    @contextmanager
    def _searching(self, works: Sequence[SearchWork], started: float | None = None) -> Iterator[None]:
        """Add the time of the `with` block to these jobs. If there is only one job, an exception becomes its error.

        The time begins at `started`, if given: the performance counter when the search in an engine began.
        """
        self._go_on()
        started = started or time.perf_counter()
        try:
            yield
        except Exception as error:  # an index may raise any exception
            if len(works) == 1:
                _fail(works[0], error)
        for work in works:
            work.timings["search_s"] += time.perf_counter() - started


def _fail(work: SearchWork, error: Exception) -> None:
    if not isinstance(error, ShoalError):
        facts = logs.about(work.job.id, work.delivery.client, work.job.traceparent)
        log.error("a search for %d queries failed: %s", len(work.job.texts), logs.places(error), extra=facts)
    work.fail("the search failed", error)
