"""A search with options: a job's queries, the ranking of each query, and the hits in the answer."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.contract.options import Options
from shoal.contract.vectors import SparseVector
from shoal.errors import InvalidRequest
from shoal.operations import Search
from shoal.operations.search_fields import parse_facets
from shoal.operations.search_options import SNIPPET_CHARS
from shoal_workers.index.hybrid_ranker import Ranker
from shoal_workers.index.lexical.snippet import snippet
from shoal_workers.index.query import Query, queries_of
from shoal_workers.index.search.diversity import most_diverse, num_candidates
from shoal_workers.index.search.facets import count_facet
from shoal_workers.index.search.groups import GroupKeys, leads_of, members_of
from shoal_workers.index.search.paging import Cursor, Place, Places
from shoal_workers.index.vectors.upper_bounds import SharedProducts

if TYPE_CHECKING:
    from shoal_workers.index.index import Index

Item = TypeVar("Item")

#: Options with which the reranker reads pairs, because the job's own options apply only to its queries.
PAIR_OPTIONS = Options()

#: Number of characters that are searched for snippets: least and largest number in one document, and largest number in
#: all hits together.
LEAST_READ, MOST_READ, MOST_READ_TOGETHER = 1_024, 2**16, 2**22


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The answer to one job: an item for each list of hits, or None for parts that the job did not ask for."""

    hits: list[list[dict[str, Any]]]
    cursors: list[str | None] | None = None
    totals: list[int] | None = None
    facets: list[dict[str, Any]] | None = None


class RankedList(NamedTuple):
    """One list of hits before its documents are read: the query, the ranked hits in groups, and the ranking.

    `cursor` leads to the next page.
    """

    query: Query
    groups: list[list[Place]]
    ranking: Places
    cursor: str | None = None


class RankedSearch:
    """The search of one job in one version of an index, with the changes up to now.

    `vectors` belong to the job's texts, float32 `[texts, dimension]`, and so do the `sparse` vectors that searches by
    learned words need. `going_on` is called for each list of hits. `shared` has the products of codes for the texts of
    several jobs. Raises InvalidRequest for an option that does not fit this index, TooLarge for more lists than the
    options allow, and IndexCorrupt.
    """

    def __init__(
        self,
        index: "Index",
        job: Search,
        vectors: NDArray[np.float32],
        going_on: Callable[[], object],
        shared: SharedProducts | None,
        sparse: Sequence[SparseVector],
    ):
        self._index = index
        self._live = index.live
        self._page_start = Cursor.of(job)
        if not (job.search.mode or index.manifest.dimension):
            job = replace(job, search=replace(job.search, mode=index.default_mode))  # this checks the options again
        self._job, self._options = job, job.search
        self._going_on = going_on
        now = self._page_start.now if self._page_start else time.time()
        self._ranker = Ranker(index, self._live, self._options, now, shared)
        self._group_field = index.group_field if job.search.group_by is None else job.search.group_by
        self._lists = self._find(vectors, sparse)

    def _find(self, vectors: NDArray[np.float32], sparse: Sequence[SparseVector]) -> list[RankedList]:
        """Return the lists of hits that the job asks for, or longer lists for a later step to choose from."""
        self._job.check_rows(int(np.count_nonzero(self._ranker.eligible)))
        self._check_options()
        queries = queries_of(self._job, vectors, sparse, self._index, self._live)
        if self._options.mode == "lexical" and not all(query.texts for query in queries):
            raise InvalidRequest("mode lexical finds words: it takes texts, not vectors and ids alone")
        return [self._page(query) for query in self._each(queries)]

    def _check_options(self) -> None:
        """Raise InvalidRequest for an option that does not fit this index, or that would have no effect."""
        options = self._options
        if not self._index.manifest.dimension:
            self._check_words_alone()
        if options.group_size > 1 and not self._group_field:
            raise InvalidRequest(
                f"group_size is {options.group_size}, without group_by: name the field whose values make groups, or "
                "leave group_size out"
            )
        if options.facets or options.group_by or options.fields:
            fields = self._index.fields_at(self._live)
            for number, name in enumerate(options.facets or ()):  # checked before hits are scored
                fields.check_values(name, f"facets[{number}]")
            if options.group_by:
                fields.check_values(options.group_by, "group_by")
            fields.check_hits(options.fields)

    def _check_words_alone(self) -> None:
        """Raise InvalidRequest for an option that needs vectors, in an index of words alone."""
        options = self._options
        asked: dict[str, Any] = {"like": options.like, "vectors": options.vectors, "negative": options.num_negative}
        asked |= {"diversity": options.diversity, f"mode {options.mode}": options.mode != "lexical"}
        if needing := [name for name, value in asked.items() if value]:
            raise InvalidRequest(
                f"{needing[0]} needs vectors, and this index has words alone: leave it out, or build the index with a "
                "model that makes vectors"
            )

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs that the reranker is to score, list by list: a query and the text of a hit."""
        asked, found = (self._options.rerank or {}).get("query"), []
        for hits in self._lists:
            query = asked or "\n".join(hits.query.texts)
            for place in chain.from_iterable(hits.groups):
                found.append((query, str(self._index.document_of(place.row, self._live)["text"])))
        return found

    def token_codes(self, digest: str) -> dict[int, NDArray[np.int8]]:
        """Return the codes of the token vectors that the model with this digest made, keyed by the number of the pair.

        Documents that were added since the build have none.
        """
        tokens, manifest = self._index.token_vectors, self._index.manifest
        if tokens is None or manifest.token_digest != digest:
            return {}
        places = chain.from_iterable(chain.from_iterable(hits.groups) for hits in self._lists)
        return {n: tokens.of(place.row) for n, place in enumerate(places) if place.row < manifest.count}

    def answer(self, scores: Sequence[float] | None = None) -> SearchAnswer:
        """Return the answer with the best hits; `scores` are the reranker's scores of all `pairs`, if there are any."""
        lists = self._lists if scores is None else self._reranked(iter(scores))
        hits = [[self._hit(found.query, place) for place in self._best(found.groups)] for found in self._each(lists)]
        has_pages, has_facets = self._options.cursor is not None, bool(self._options.facets)
        totals = None
        if has_pages or has_facets:
            totals = [int(np.count_nonzero(self._ranker.selection(found.query))) for found in self._each(lists)]
        return SearchAnswer(
            hits,
            [found.cursor for found in lists] if has_pages else None,
            totals,
            [self._facets(found) for found in self._each(lists)] if has_facets else None,
        )

    def _each(self, lists: Iterable[Item]) -> Iterator[Item]:
        """Yield the items, and call `going_on` before each."""
        for one in lists:
            self._going_on()
            yield one

    # Facets

    def _facets(self, found: RankedList) -> dict[str, Any]:
        """Return the facets of a list's `facets_top_n` best documents, or of all its documents without that option.

        Pages, groups, reranking and diversity have no effect on facets.
        """
        if self._options.facets_top_n is not None:
            is_best = np.zeros_like(self._ranker.eligible)
            is_best[[place.row for place in islice(self._places(found.ranking), self._options.facets_top_n)]] = True
            return self._count(is_best)
        selected = self._ranker.selection(found.query)
        return self._facets_of_all if selected is self._ranker.eligible else self._count(selected)

    @cached_property
    def _facets_of_all(self) -> dict[str, Any]:
        return self._count(self._ranker.eligible)

    def _count(self, selected: NDArray[np.bool_]) -> dict[str, Any]:
        fields = self._index.fields_at(self._live)
        return {name: count_facet(name, fields, selected) for name in parse_facets(self._options.facets)}

    # Page

    def _page(self, query: Query) -> RankedList:
        """Return the list of hits on the page that the job asks for."""
        num, start, options = self._job.k, self._page_start, self._options
        if options.rerank:
            num = int(options.rerank["top_n"])
        elif options.diversity:
            num = num_candidates(num)
        num_before = start.num_shown if start else 0
        num_ranked = max(num_before + num + (start is not None), options.facets_top_n or 0)
        ranking = Places(self._ranker.find(query, self._ranker.selection(query)), num_ranked)
        key_of = self._group_keys.key if self._group_field else lambda row: row
        leads = islice(leads_of(self._places(ranking), key_of), num_before, None)
        shown, end = list(islice(leads, num)), None
        if start is not None and next(leads, None) is not None:
            end = replace(start, num_shown=num_before + len(shown)).pack()
        if not self._group_field or options.group_size == 1:
            return RankedList(query, [[lead.place] for lead in shown], ranking, end)
        keys, size = [lead.key for lead in shown], options.group_size
        members = self._ranker.selection(query) & self._group_keys.members(keys)
        of_groups = Places(self._ranker.find(query, members), num * size)
        return RankedList(query, members_of(self._places(of_groups), self._group_keys.key, keys, size), ranking, end)

    def _places(self, ranking: Places) -> Iterable[Place]:
        """Return the ranked documents that reach `min_score`."""
        if (least := self._options.min_score) is None or self._options.sort is not None:
            return ranking
        return takewhile(lambda place: place.score >= least, ranking)

    @cached_property
    def _group_keys(self) -> GroupKeys:
        """The keys of the groups of documents."""
        return GroupKeys(self._group_field, self._index.fields_at(self._live))

    # Choose and answer

    def _best(self, groups: list[list[Place]]) -> list[Place]:
        """Return the documents that become hits: all in the first groups, or in groups chosen for diversity."""
        if not self._options.diversity:
            return list(chain.from_iterable(groups[: self._job.k]))
        leads = [group[0] for group in groups]
        scores = np.array([lead.score for lead in leads], np.float32)
        vectors = self._index.vectors_at([lead.row for lead in leads], self._live)
        chosen = most_diverse(scores, vectors, self._job.k, self._options.diversity)
        return [place for n in chosen for place in groups[n]]

    def _reranked(self, scores: Iterator[float]) -> list[RankedList]:
        """Return the lists, with groups and the hits in each group in the order of the reranker's scores."""
        lists = []
        for found in self._lists:
            groups = [[Place(place.row, next(scores), place.score) for place in group] for group in found.groups]
            for group in groups:
                group.sort(key=lambda place: -place.score)
            lists.append(found._replace(groups=sorted(groups, key=lambda group: -group[0].score)))
        return lists

    def _hit(self, query: Query, place: Place) -> dict[str, Any]:
        """Return the hit of a document in the list of a query, with the parts that the search asks for."""
        document, options = self._index.document_of(place.row, self._live), self._options
        text = document["text"]
        hit = {"id": document.pop("id"), "score": place.score}
        names = document if options.fields is None else options.fields
        hit |= {name: document[name] for name in names if name in document}
        if options.snippet is not None and query.texts:
            num_read = MOST_READ_TOGETHER // (self._job.k * options.group_size * self._job.num_lists)
            num_read = max(LEAST_READ, min(MOST_READ, num_read))
            words, max_chars = self._ranker.words(query), options.snippet.get("max_chars", SNIPPET_CHARS)
            hit["snippet"] = snippet(text, words.lexical.analyzer, words.weights, max_chars, num_read)
        if options.explain:
            hit["explain"] = self._explain(query, place)
        return hit

    def _explain(self, query: Query, place: Place) -> dict[str, Any]:
        """Return the parts of a score."""
        mode = self._options.mode or self._index.default_mode
        explained: dict[str, Any] = {"mode": mode}
        if self._index.manifest.dimension:
            (vector,) = self._index.vectors_at([place.row], self._live)
            explained["cosine"] = float(np.vecdot(vector, query.vector))
        if mode != "dense" and query.texts:
            explained |= self._ranker.words(query).explain(place.row)
        if self._options.boost is not None:
            explained["boost"] = float(self._ranker.boosts[place.row])
        if place.first_score is not None:
            explained["rerank"] = place.score
        return explained
