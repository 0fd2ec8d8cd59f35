"""Searches by words and vectors with boosts, filters, fusion and diversity, against scoring all documents.

Many documents have the same vector or nearly so, the same text, or the same fields.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from changes import unit_vectors
from field_documents import BOOSTS, DOCUMENTS, FILTERS, KINDS, Fields, matches
from hypothesis import given
from hypothesis import strategies as st
from index_versions import write_version
from made_documents import DIMENSION, Made, Vectors, near_ties
from numpy.typing import NDArray
from test_diversity import check_choice
from test_search_modes import vectors_of_queries

from shoal.changes.change import Change
from shoal.operations import Search
from shoal.operations.search_fields import parse_boosts
from shoal.operations.search_options import SearchOptions
from shoal.records.document import Document
from shoal_workers.index.index import Index
from shoal_workers.index.query import ALPHA
from shoal_workers.index.ranked_search import pool_size
from shoal_workers.index.search.boosts import boosts_of

Numbers = NDArray[np.float32]

TEXTS = st.lists(st.sampled_from(["rain", "storm", "storms", "sun", "wind and rain"]), min_size=1, max_size=4).map(
    " ".join
)


@dataclass(frozen=True)
class Scene:
    """An index with changes, its documents in their order, and the rows of the version that are left of it."""

    index: Index
    made: Made
    left: NDArray[np.intp]

    @classmethod
    def of(cls, folder: Path, documents: list[Document], vectors: Vectors, num_added: int, num_deleted: int) -> "Scene":
        """Build a version of the first documents, add the last ones, and delete some of the first."""
        count = len(documents) - num_added
        write_version(folder, documents[:count], vectors[:count], kinds=KINDS)
        index = Index.open_version(folder)
        deleted = tuple(one.id for one in documents[:num_deleted])
        if num_added or deleted:
            change = Change(tuple(documents[count:]), vectors[count:], deleted, "d", 0.0)
            index.live = index.live.after([change], "1-1", index.rows_of)
        kept = [one for one in range(len(documents)) if one >= num_deleted]
        made = Made([documents[n] for n in kept], [vectors[n] for n in kept])
        return cls(index, made, np.array([n for n in kept if n < count], np.intp))

    def of_all(self, of_version: Numbers, of_added: Numbers) -> Numbers:
        """Return numbers of all documents that are left."""
        return np.concatenate([of_version[self.left], of_added])

    def bm25(self, texts: tuple[str, ...]) -> Numbers:
        """Return the BM25 scores of all documents: test_lexical.py compares them with the formula."""
        words, live = self.index.lexical.weigh(texts), self.index.live
        assert live.terms is not None
        return self.of_all(self.index.lexical.scores(words), live.terms.scores(words))

    def boosts(self, boost: list[dict[str, Any]] | None) -> Numbers:
        """Return the sums of boosts of all documents: test_selection.py compares them with looking at each document."""
        if boost is None:
            return np.zeros(len(self.made.documents), np.float32)
        return self.of_all(*boosts_of(parse_boosts(boost), self.index.fields_at(self.index.live), 0.0))

    def lists(self, job: Search, vectors: Vectors) -> Iterator[list[tuple[int, float]]]:
        """Yield for each list the numbers of all documents that may be hits, with their scores, best first."""
        search = job.search
        eligible = [matches(search.filter or {}, one.fields) for one in self.made.documents]
        for number, (vector, excluded) in enumerate(vectors_of_queries(self.made, job, vectors)):
            positive = job.texts[: len(job.texts) - search.num_negative]
            texts = tuple(positive if search.fuse else positive[number : number + 1])
            is_found = np.array(
                [ok and one.id not in excluded for ok, one in zip(eligible, self.made.documents, strict=True)], bool
            )
            scores = np.vecdot(np.stack(self.made.vectors), vector)
            known = self.boosts(search.boost)
            if search.mode != "dense" and texts:
                scores, words, is_found = self._with_words(search, scores, self.bm25(texts), is_found)
                known = words + known
            scores = scores + known  # added in this order, which decides the last bit
            least = -np.inf if search.min_score is None else search.min_score
            rows = np.flatnonzero(is_found & (scores >= least))
            yield [(int(row), float(scores[row])) for row in rows[np.argsort(-scores[rows], kind="stable")]]

    def _with_words(
        self, search: SearchOptions, cosines: Numbers, bm25: Numbers, is_found: NDArray[np.bool_]
    ) -> tuple[Numbers, Numbers, NDArray[np.bool_]]:
        """Return the parts of the scores that vectors and words have, and the documents that may be hits."""
        if search.mode == "lexical":
            return np.zeros_like(cosines), bm25, is_found & (bm25 > 0)
        if not (best := float(bm25.max(initial=0, where=is_found))):
            return cosines, np.zeros_like(bm25), is_found
        alpha = ALPHA if search.alpha is None else search.alpha
        return np.float32(alpha) * cosines, np.float32((1 - alpha) / np.float32(best)) * bm25, is_found


@st.composite
def scenes(draw: st.DrawFn, folder: Path) -> Scene:
    """Draw documents, of which some are added or deleted after the build."""
    fields: list[Fields] = draw(st.lists(DOCUMENTS, min_size=3, max_size=40))
    texts = draw(st.lists(TEXTS, min_size=len(fields), max_size=len(fields)))
    documents = [Document(str(n), text, one) for n, (text, one) in enumerate(zip(texts, fields, strict=True))]
    seed = draw(st.integers(0, 1_000))
    vectors = draw(st.sampled_from([near_ties, lambda n, s: unit_vectors(n, DIMENSION, s)]))(len(documents), seed)
    num_added = draw(st.integers(0, len(documents) - 2))
    num_deleted = draw(st.integers(0, len(documents) - num_added - 1))
    return Scene.of(folder, documents, vectors, num_added, num_deleted)


@st.composite
def jobs(draw: st.DrawFn, ids: list[str]) -> tuple[Search, Vectors]:
    """Draw a job, and the vectors of its texts."""
    mode = draw(st.sampled_from(["dense", "lexical", "hybrid", "hybrid"]))
    like = None if mode == "lexical" else draw(st.none() | st.lists(st.sampled_from(ids), min_size=1, max_size=2))
    texts = draw(st.lists(TEXTS | st.just("unknown"), min_size=0 if like else 1, max_size=3))
    negative = draw(st.lists(TEXTS, max_size=2))
    options: dict[str, Any] = {
        "mode": mode,
        "alpha": draw(st.sampled_from([None, 0.0, 0.4, 1.0])) if mode == "hybrid" else None,
        "boost": draw(st.none() | BOOSTS),
        "filter": draw(st.none() | FILTERS),
        "min_score": draw(st.sampled_from([None, None, 0.0, 0.5])),
        "like": like,
        "num_negative": len(negative),
        "fuse": draw(st.booleans()),
        "fields": [],
    }
    job = Search(texts + negative, k=draw(st.sampled_from([1, 3, 50])), search=SearchOptions(**options))
    pool = near_ties(8, draw(st.integers(0, 1_000)))
    return job, pool[: len(job.texts)].reshape(len(job.texts), DIMENSION)


@given(st.data())
def test_hits_are_those_of_scoring_all_documents(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scene = data.draw(scenes(Path(folder) / "v1"))
        job, vectors = data.draw(jobs([one.id for one in scene.made.documents]))
        ids = [one.id for one in scene.made.documents]
        expected = [
            [{"id": ids[n], "score": score} for n, score in each][: job.k] for each in scene.lists(job, vectors)
        ]
        assert scene.index.answer(job, vectors).hits == expected


@given(st.data(), st.sampled_from([0.0, 0.3, 0.8, 1.0]))
def test_diverse_hits_are_the_best_choice_of_all_documents(data: st.DataObject, diversity: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scene = data.draw(scenes(Path(folder) / "v1"))
        job, vectors = data.draw(jobs([one.id for one in scene.made.documents]))
        options = {name: getattr(job.search, name) for name in SearchOptions.__slots__} | {"diversity": diversity}
        diverse = Search(job.texts, k=job.k, search=SearchOptions(**options))
        places = {one.id: n for n, one in enumerate(scene.made.documents)}
        lists = zip(scene.index.answer(diverse, vectors).hits, scene.lists(job, vectors), strict=True)
        for hits, ranked in lists:
            pool = ranked[: pool_size(job.k)]
            position = {n: place for place, (n, _) in enumerate(pool)}
            chosen = [position[places[hit["id"]]] for hit in hits]
            assert len(set(chosen)) == len(hits) == min(job.k, len(pool))
            assert [hit["score"] for hit in hits] == [pool[place][1] for place in chosen]
            if pool:
                scores, numbers = np.array([score for _, score in pool], np.float32), [n for n, _ in pool]
                check_choice(chosen, scores, np.stack([scene.made.vectors[n] for n in numbers]), diversity)
