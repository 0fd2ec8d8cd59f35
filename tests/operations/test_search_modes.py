"""Searches with options find the hits that scoring all documents finds, before and after changes of the index."""

import math
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changes import unit_vectors
from field_documents import (
    BOOSTS,
    FILTERS,
    KINDS,
    NAMES,
    SORTS,
    VALUES,
    Fields,
    in_order,
    matches,
    random_fields,
    values_of,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from index_versions import write_version
from made_documents import DIMENSION, Made, Vectors, apply, near_ties
from numpy.typing import NDArray
from queues import Queue, drive

from shoal.changes.change import Change
from shoal.errors import InvalidRequest
from shoal.operations import Search
from shoal.operations.search_fields import parse_boosts
from shoal.operations.search_options import SearchOptions
from shoal.records.document import Document
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.files.field_kinds import shown
from shoal_workers.index.hybrid_ranker import ALPHA, MAX_KEPT_WORDS
from shoal_workers.index.index import Index
from shoal_workers.index.query import NEGATIVE_WEIGHT
from shoal_workers.index.ranked_search import SearchAnswer
from shoal_workers.index.search.boosts import boosts_of
from shoal_workers.index.search.diversity import MAX_CANDIDATES, MIN_CANDIDATES, most_diverse, num_candidates
from shoal_workers.loop.worker import Worker

Hit = dict[str, Any]
Numbers = NDArray[np.float32]

#: The number of a document, and its score.
Place = tuple[int, float]

NO_VECTORS = np.empty((0, DIMENSION), np.float32)

TEXTS = st.lists(st.sampled_from(["rain", "storm", "storms", "sun", "wind and rain"]), min_size=1, max_size=4).map(
    " ".join
)


@dataclass(frozen=True)
class Scene:
    """An index with a change. `made` has its documents in order; `left` has the version's rows that are not deleted."""

    index: Index
    made: Made
    left: list[int]

    @classmethod
    def of(
        cls, folder: Path, documents: Sequence[Document], vectors: Vectors, num_built: int, deleted: Sequence[str] = ()
    ) -> "Scene":
        """Build a version of the first documents, delete some ids, and add the other documents."""
        built, added = documents[:num_built], documents[num_built:]
        write_version(folder, built, vectors[:num_built], kinds=KINDS)
        index, made = Index.open_version(folder), Made(list(built), list(vectors[:num_built]))
        if added or deleted:
            apply(index, [Change(tuple(added), vectors[num_built:], tuple(deleted), "d", 0.0)])
        for one in deleted:
            made.delete(one)
        for document, vector in zip(added, vectors[num_built:], strict=True):
            made.add(document, vector)
        changed = {*deleted, *(one.id for one in added)}
        return cls(index, made, [row for row, one in enumerate(built) if one.id not in changed])

    def answer(self, query: Vectors, k: int = 10, text: str = "storm", **options: Any) -> SearchAnswer:
        return self.index.find(Search([text], k=k, search=SearchOptions(**options)), query[None]).answer()

    def expected(self, query: Vectors, text: str = "storm", **options: Any) -> list[Hit]:
        """Return all hits of the search that `answer` asks, by scoring all documents."""
        job = Search([text], search=SearchOptions(**options))
        (ranked,) = self.lists(job, query[None])
        return [self.hit(place, job.search) for place in ranked]

    def hit(self, place: Place, search: SearchOptions) -> Hit:
        document, score = self.made.documents[place[0]], place[1]
        found = {"text": document.text, **document.fields}
        names = found if search.fields is None else search.fields
        return {"id": document.id, "score": score} | {name: found[name] for name in names if name in found}

    def groups(self, ranked: list[Place], search: SearchOptions) -> list[list[Hit]]:
        groups: dict[Any, list[Hit]] = {}
        for number, score in ranked:
            fields = self.made.documents[number].fields
            key: tuple[Any, ...] = (number,)
            if search.group_by and (values := values_of(fields, search.group_by)):
                key = (None, min(values))
            groups.setdefault(key, []).append(self.hit((number, score), search))
        return [group[: search.group_size if search.group_by else 1] for group in groups.values()]

    def lists(self, job: Search, vectors: Vectors) -> Iterator[list[Place]]:
        """Yield, for each list of hits, the positions of all documents that may be hits, best first."""
        documents, search = self.made.documents, job.search
        eligible = [matches(search.filter or {}, one.fields) for one in documents]
        for number, (vector, excluded) in enumerate(self._queries(job, vectors)):
            positive = job.texts[: len(job.texts) - search.num_negative]
            texts = tuple(positive if search.fuse else positive[number : number + 1])
            is_found = np.array(
                [ok and one.id not in excluded for ok, one in zip(eligible, documents, strict=True)], bool
            )
            scores, known = np.vecdot(np.stack(self.made.vectors), vector), self._boosts(search.boost)
            if search.mode != "dense" and texts:
                scores, words, is_found = self._with_words(search, scores, texts, is_found)
                known = words + known
            scores = scores + known  # the order of these sums decides the last bit
            rows = np.flatnonzero(is_found & (scores >= (-np.inf if search.min_score is None else search.min_score)))
            found = scores[rows].tolist()
            order = in_order(search.sort or [], [documents[row].fields for row in rows], found)
            yield [(int(rows[n]), found[n]) for n in order]

    def _queries(self, job: Search, vectors: Vectors) -> Iterator[tuple[Vectors, set[str]]]:
        """Yield the vector of each list of hits, and the ids of documents that must not be hits."""
        search, num_positive = job.search, len(job.texts) - job.search.num_negative
        asked: list[tuple[Vectors, set[str]]] = [(vector, set()) for vector in vectors[:num_positive]]
        asked += [(unit(np.array(vector)), set()) for vector in search.vectors or ()]
        for liked in search.like or ():
            like = [v for d, v in zip(self.made.documents, self.made.vectors, strict=True) if d.id == liked]
            asked.append((unit(np.mean(np.array(like), axis=0)), {liked}))
        if search.fuse:
            asked = [(unit(np.mean([vector for vector, _ in asked], axis=0)), set().union(*(ids for _, ids in asked)))]
        for vector, ids in asked:
            away = NEGATIVE_WEIGHT * vectors[num_positive:].mean(axis=0) if search.num_negative else None
            yield (vector if away is None else unit(vector - away)), ids

    def _boosts(self, boost: list[dict[str, Any]] | None) -> Numbers:
        """Return the sum of boosts of each document. test_selection.py checks these sums document by document."""
        if boost is None:
            return np.zeros(len(self.made.documents), np.float32)
        found = boosts_of(parse_boosts(boost), self.index.fields_at(self.index.live), 0.0)
        return np.concatenate([found[self.left], found[self.index.manifest.count :]])

    def _with_words(
        self, search: SearchOptions, cosines: Numbers, texts: tuple[str, ...], is_found: NDArray[np.bool_]
    ) -> tuple[Numbers, Numbers, NDArray[np.bool_]]:
        """Return the vectors' parts of the scores, the words' parts, and the documents that may be hits.

        test_lexical.py checks scores by BM25 against the formula.
        """
        terms, live = self.index.lexical.weigh(texts), self.index.live.terms
        assert live is not None
        bm25 = np.concatenate([self.index.lexical.scores(terms)[self.left], live.scores(terms)])
        if search.mode == "lexical":
            return np.zeros_like(cosines), bm25, is_found & (bm25 > 0)
        if not (best := float(bm25.max(initial=0, where=is_found))):
            return cosines, np.zeros_like(bm25), is_found
        alpha = ALPHA if search.alpha is None else search.alpha
        return np.float32(alpha) * cosines, np.float32((1 - alpha) / np.float32(best)) * bm25, is_found


def unit(vector: Any) -> Vectors:
    exact = vector.astype(np.float64)
    return np.asarray(exact / max(float(np.linalg.norm(exact)), 1e-12), np.float32)


def random_document(draw: random.Random, num_ids: int) -> Document:
    words = draw.choices(["rain", "storm", "storms", "sun", "wind and rain"], k=draw.randint(1, 4))
    return Document(str(draw.randrange(num_ids)), " ".join(words), random_fields(draw, VALUES))


@st.composite
def scenes(draw: st.DrawFn, folder: Path) -> Scene:
    """Draw an index. Many of its documents have equal ids, vectors and texts; some were added or deleted later."""
    chosen = random.Random(draw(st.integers(0, 2**32)))
    count = chosen.choice([3, 20, 60])
    documents = [random_document(chosen, count) for _ in range(count)]
    seed = chosen.randrange(1_000)
    vectors = near_ties(count, seed) if chosen.random() < 0.5 else unit_vectors(count, DIMENSION, seed)
    deleted = chosen.sample([one.id for one in documents], chosen.choice([0, count // 4]))
    scene = Scene.of(folder, documents, vectors, chosen.choice([count, count // 2 + 1]), deleted)
    assume(scene.made.documents)
    return scene


@st.composite
def jobs(draw: st.DrawFn, scene: Scene) -> tuple[Search, Vectors]:
    """Draw a job, and the vectors of its texts."""
    mode, pool = draw(st.sampled_from(["dense", "lexical", "hybrid", "hybrid"])), near_ties(8, draw(st.integers(0, 99)))
    ids = st.sampled_from([one.id for one in scene.made.documents])
    numbers = st.lists(st.integers(0, len(pool) - 1), min_size=1, max_size=2)
    has_vectors = mode != "lexical"
    like = draw(st.none() | st.lists(ids, min_size=1, max_size=2)) if has_vectors else None
    asked = draw(st.none() | numbers) if has_vectors else None
    texts = draw(st.lists(TEXTS | st.just("unknown"), min_size=0 if like or asked else 1, max_size=3))
    negative = draw(st.lists(TEXTS, max_size=2))
    group_by = draw(st.sampled_from([None, "", *KINDS]))
    options: dict[str, Any] = {
        "mode": mode,
        "alpha": draw(st.sampled_from([None, 0.0, 0.4, 1.0])) if mode == "hybrid" else None,
        "boost": draw(st.none() | BOOSTS),
        "filter": draw(st.none() | FILTERS),
        "min_score": draw(st.sampled_from([None, None, -0.2, 0.0, 0.5])),
        "sort": draw(st.none() | st.none() | SORTS),
        "group_by": group_by,
        "group_size": draw(st.sampled_from([3, 1, 2])) if group_by else 1,
        "like": like,
        "vectors": asked and [(3 * pool[n]).tolist() for n in asked],
        "num_negative": len(negative),
        "fuse": draw(st.booleans()),
        "fields": draw(st.none() | st.lists(NAMES | st.just("text"), unique=True)),
    }
    job = Search(texts + negative, k=draw(st.sampled_from([3, 1, 50])), search=SearchOptions(**options))
    return job, pool[: len(job.texts)].reshape(len(job.texts), DIMENSION)


@settings(max_examples=100)
@given(st.data())
def test_a_search_finds_what_scoring_all_documents_finds(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scene = data.draw(scenes(Path(folder) / "v1"))
        job, vectors = data.draw(jobs(scene))
        lists = [scene.groups(ranked, job.search) for ranked in scene.lists(job, vectors)]
        assert scene.index.find(job, vectors).answer().hits == [joined(groups[: job.k]) for groups in lists]
        if job.num_lists == 1:
            check_pages(scene, job, vectors, lists[0])
        if job.search.sort is None:
            check_second_stage(scene.index, job, vectors, lists)


def joined(groups: list[list[Hit]]) -> list[Hit]:
    return [hit for group in groups for hit in group]


def check_pages(scene: Scene, job: Search, vectors: Vectors, groups: list[list[Hit]]) -> None:
    """Assert that the pages of a search together have the hits of the groups, in order."""
    (matching,) = scene.lists(replace(job, search=replace(job.search, min_score=None)), vectors)
    cursor: str | None = ""
    for start in range(0, max(1, len(groups)), job.k):
        assert cursor is not None
        page = scene.index.find(replace(job, search=replace(job.search, cursor=cursor)), vectors).answer()
        assert page.hits == [joined(groups[start : start + job.k])]
        assert page.totals == [len(matching)]
        (cursor,) = page.cursors or [""]
    assert cursor is None


def check_second_stage(index: Index, job: Search, vectors: Vectors, lists: list[list[list[Hit]]]) -> None:
    """Assert that the best groups get new scores, many of them equal, and are returned in the order of these scores."""
    search = replace(job.search, rerank={"top_n": job.k + 3, "query": "storm"})
    stage = index.find(replace(job, search=search), vectors)
    scores = [0.1 * (7 * number % 5) for number in range(len(stage.pairs()))]
    following, wanted = iter(scores), []
    for groups in lists:
        again = [sorted((hit | {"score": next(following)} for hit in g), key=by_score) for g in groups[: job.k + 3]]
        again.sort(key=lambda group: by_score(group[0]))
        wanted.append(joined(again[: job.k]))
    assert next(following, None) is None
    assert stage.answer(scores).hits == wanted


def by_score(hit: Hit) -> float:
    return -float(hit["score"])


# Diversity


@given(
    nps.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1, 30, width=16)),
    st.integers(0, 99),
    st.integers(1, 50),
    st.sampled_from([0.0, 0.3, 0.8, 1.0]),
)
def test_each_diverse_hit_is_the_best_choice_of_all_that_are_left(
    scores: Numbers, seed: int, k: int, diversity: float
) -> None:
    scores, vectors = -np.sort(-scores), near_ties(len(scores), seed)
    relevance = scores.astype(float) / (scores[0] if scores[0] > 0 else 1.0)
    cosines = vectors.astype(float) @ vectors.astype(float).T
    chosen = most_diverse(scores, vectors, k, diversity).tolist()
    assert (chosen[0], len(set(chosen))) == (0, min(k, len(scores)))
    for position in range(1, len(chosen)):
        values = (1 - diversity) * relevance - diversity * cosines[chosen[:position]].max(axis=0)
        values[chosen[:position]] = -np.inf
        assert values[chosen[position]] >= values.max() - 1e-5 * max(1.0, float(np.abs(relevance).max()))


def test_diverse_hits_are_chosen_from_a_few_hits_for_each(tmp_path: Path) -> None:
    sizes = {k: num_candidates(k) for k in (1, 13, 100, 400, 1_000)}
    assert sizes == {1: MIN_CANDIDATES, 13: 52, 100: 400, 400: MAX_CANDIDATES, 1_000: MAX_CANDIDATES}
    scene, query = scene_of(tmp_path / "v1", [{}] * 80, 30, 5), QUERY
    for mode in ("dense", "lexical", "hybrid"):
        (ranked,) = scene.lists(Search(["text 7"], search=SearchOptions(mode=mode)), query[None])
        pool = [row for row, _ in ranked[:MIN_CANDIDATES]]
        scores = np.array([score for _, score in ranked[:MIN_CANDIDATES]], np.float32)
        chosen = most_diverse(scores, np.stack([scene.made.vectors[row] for row in pool]), 10, 0.5)
        found = [hit["id"] for hit in scene.answer(query, 10, "text 7", mode=mode, diversity=0.5).hits[0]]
        assert found == [scene.made.documents[pool[n]].id for n in chosen]


# Refusals


def forty(folder: Path) -> Scene:
    """Return an index of forty documents. All have the field `n`, and most the field `group`."""
    fields: list[Fields] = [{"n": n} | ({"group": n % 5} if n % 3 else {}) for n in range(40)]
    documents = [Document(str(n), f"text {n}", one) for n, one in enumerate(fields)]
    vectors = unit_vectors(40, DIMENSION, 7)
    write_version(folder, documents, vectors)
    return Scene(Index.open_version(folder), Made(documents, list(vectors)), [*range(40)])


def refusal(index: Index, job: Search, vectors: Vectors) -> str:
    """Return the message with which a search is refused, without a traceback that would keep the index open."""
    try:
        index.find(job, vectors).answer()
    except InvalidRequest as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"group_by": "topic"}, 'group_by: there is no field "topic": the index has "group", "n"'),
        ({"group_by": "text"}, 'group_by: there is no field "text": text is not a field with values'),
        ({"fields": ["id", "n", "topic"]}, 'fields[2]: there is no field "topic": the index has "group", "n"'),
        ({"facets": ["n", "topic"]}, 'facets[1]: there is no field "topic": the index has "group", "n"'),
        ({"group_size": 3}, "group_size is 3, without group_by: name the field"),
        ({"like": ["7", "nobody"]}, 'like[1] is "nobody"'),
        ({"vectors": [[1.0, 2.0]]}, "vectors[0] has 2 numbers: the vectors of this index have 12"),
        ({"mode": "lexical", "like": ["7"]}, "mode lexical finds words: it takes texts"),
    ],
)
def test_an_option_that_does_not_fit_the_index_is_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    job = Search(["a"], search=SearchOptions(**options))
    assert refusal(forty(tmp_path / "v1").index, job, unit_vectors(1, DIMENSION, 1)).startswith(words)


def test_a_given_vector_may_have_any_length_but_0(tmp_path: Path) -> None:
    scene = forty(tmp_path / "v1")
    asked = [(length * scene.made.vectors[3].astype(np.float64)).tolist() for length in (1e-300, 1e14)]
    for (hit,) in scene.index.find(Search([], k=1, search=SearchOptions(vectors=asked)), NO_VECTORS).answer().hits:
        assert (hit["id"], hit["score"]) == ("3", pytest.approx(1, abs=1e-6))


def test_a_group_has_hits_whose_values_are_equal_for_filters(tmp_path: Path) -> None:
    values: list[Any] = ["a", ["a"], ["a", "b"], ["a", "b"], ["b", "a"], "b", "", None, [], "c", "a"]
    documents = [Document(str(n), "text", {"of": value}) for n, value in enumerate(values)]
    documents += [Document(name, "text", {"of": value}) for name, value in (("x", "a"), ("y", "new"), ("z", "new"))]
    scene = Scene.of(tmp_path / "v1", documents, unit_vectors(len(documents), DIMENSION, 3), len(values), ["0"])
    options: dict[str, Any] = {"group_by": "of", "fields": ["of"]}
    query = unit_vectors(1, DIMENSION, 4)[0]
    found = [hit["id"] for hit in scene.answer(query, 20, group_size=9, **options).hits[0]]
    groups = [{"1", "2", "3", "4", "10", "x"}, {"5"}, {"6"}, {"7"}, {"8"}, {"9"}, {"y", "z"}]
    assert {frozenset(found[n : n + len(group)]) for n in range(13) for group in groups} >= set(map(frozenset, groups))
    assert len(found) == 13
    assert len(scene.answer(query, 20, **options).hits[0]) == len(groups)
    stored = scene_of(tmp_path / "v2", [{"of": {"a": 1}}])
    assert "only exists applies" in refusal(
        stored.index, Search(["a"], search=SearchOptions(group_by="of")), QUERY[None]
    )


QUERY = unit_vectors(1, DIMENSION, 99)[0]


def scene_of(folder: Path, fields: list[Fields], num_added: int = 0, num_deleted: int = 0) -> Scene:
    """Return an index of documents with these fields. The last documents were added, and the first deleted, later."""
    documents = [Document(str(n), f"text {n}", one) for n, one in enumerate(fields)]
    deleted = [str(n) for n in range(num_deleted)]
    return Scene.of(folder, documents, near_ties(len(documents), 0), len(documents) - num_added, deleted)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Return an index of 3,000 documents with few values. 100 of them were added later, and 50 were deleted."""
    fields: list[Fields] = [{"year": n % 3, "tag": f"t{n % 7}", "and": "x"} for n in range(3_000)]
    return scene_of(tmp_path_factory.mktemp("many") / "v1", fields, 100, 50)


@pytest.mark.parametrize("wanted", [{"year": 2}, {"not": {"tag": "t0"}}, {"tag": "t6", "year": 0}])
def test_many_documents_are_filtered_whatever_part_matches(many: Scene, wanted: dict[str, Any]) -> None:
    expected = many.expected(QUERY, filter=wanted)
    for k in (1, 1_000):
        assert many.answer(QUERY, k, filter=wanted).hits == [expected[:k]]


def test_a_boost_by_the_largest_numbers_is_exact(tmp_path: Path) -> None:
    scene = scene_of(tmp_path / "v1", [{"size": -1.7e308}, {"size": 0}, {"size": 1.7e308}, {}])
    hits = scene.answer(QUERY, boost=[{"field": "size", "weight": 10}], explain=True).hits[0]
    assert {hit["id"]: hit["explain"]["boost"] for hit in hits} == {"0": 0, "1": 5, "2": 10, "3": 0}
    assert all(hit["score"] == pytest.approx(hit["explain"]["cosine"] + hit["explain"]["boost"]) for hit in hits)


def test_the_least_score_is_compared_equally_with_and_without_an_order(tmp_path: Path) -> None:
    scene = scene_of(tmp_path / "v1", [{"year": 1}])
    score = scene.answer(QUERY).hits[0][0]["score"]
    for least, num in ((score, 1), (math.nextafter(score, 2), 0)):
        for order in (None, [{"field": "year"}]):
            assert len(scene.answer(QUERY, min_score=least, sort=order).hits[0]) == num


def test_facets_count_the_documents_that_may_be_in_each_list(many: Scene) -> None:
    like = Search([], search=SearchOptions(like=["60"], facets=["year"], cursor=""))
    found = many.index.find(like, NO_VECTORS).answer()
    assert found.totals == [len(many.made.documents) - 1]
    assert found.facets
    assert found.facets[0]["year"]["num_documents"] == len(many.made.documents) - 1
    words = Search(["60", "61"], search=SearchOptions(mode="lexical", facets=["year"], filter={"tag": "t4"}))
    answer = many.index.find(words, near_ties(2, 0)).answer()
    one = {"num_documents": 1, "values": [{"value": 0, "count": 1}]}
    assert (answer.totals, answer.facets) == ([1, 0], [{"year": one}, {"year": {"num_documents": 0, "values": []}}])


@pytest.mark.parametrize(
    "options",
    [
        {"filter": {"tag": {"in": ["t1", "t2"]}}},
        {"sort": [{"field": "year", "order": "desc"}]},
        {"min_score": 0.5},
        {"group_by": "tag", "group_size": 2},
        {"mode": "hybrid"},
        {"like": ["60"]},
    ],
)
def test_facets_may_count_only_the_best_documents(many: Scene, options: dict[str, Any]) -> None:
    texts = [] if "like" in options else ["text storm"]
    vectors = QUERY[None][: len(texts)]
    ungrouped = {"group_by": ""} | {name: value for name, value in options.items() if not name.startswith("group")}
    for num in (1, 7, 1_000):
        (hits,) = many.index.find(Search(texts, k=num, search=SearchOptions(**ungrouped)), vectors).answer().hits
        counted = Search(texts, k=2, search=SearchOptions(**options, cursor="", facets=["year"], facets_top_n=num))
        found = many.index.find(counted, vectors).answer()
        counts = sorted(Counter(hit["year"] for hit in hits).items(), key=lambda item: (-item[1], item[0]))
        values = [{"value": year, "count": n} for year, n in counts]
        assert found.facets == [{"year": {"num_documents": len(hits), "values": values}}]
        (cursor,) = found.cursors or [None]
        later = replace(counted, search=replace(counted.search, cursor=cursor))
        assert cursor is None or many.index.find(later, vectors).answer().facets == found.facets


def test_numbers_and_booleans_written_as_texts_are_equal_in_hits_and_facets(tmp_path: Path) -> None:
    kinds = {"year": "number", "new": "boolean", "tag": "keyword", "day": "date"}
    written: list[Fields] = [
        {"year": "2001", "new": "true", "tag": "7", "day": "2001"},
        {"year": ["2.50", ""], "new": None, "tag": 7, "day": "2001-05-03T00:00"},
        {"year": 7, "new": "FALSE"},
    ]
    documents, vectors = [Document(str(n), "storm", one) for n, one in enumerate(written)], near_ties(3, 0)
    write_version(tmp_path / "v1", documents[:2], vectors[:2], kinds=kinds)
    index = Index.open_version(tmp_path / "v1")
    apply(index, [Change((documents[2],), vectors[2:], (), "d", 0.0)])
    expected: dict[str, Fields] = {
        "0": {"year": 2001, "new": True, "tag": "7", "day": "2001"},
        "1": {"year": [2.5, ""], "new": None, "tag": 7, "day": "2001-05-03T00:00"},
        "2": {"year": 7, "new": False},
    }
    asked = Search(["storm"], search=SearchOptions(facets=["year", "new"]))
    (facets,) = index.find(asked, vectors[:1]).answer().facets or [{}]
    for hits in (index.search(vectors[:1], 3)[0], index.find(asked, vectors[:1]).answer().hits[0]):
        assert {hit["id"]: {name: hit[name] for name in expected[hit["id"]]} for hit in hits} == expected
        assert isinstance(next(hit["year"] for hit in hits if hit["id"] == "0"), int)
    assert [one["value"] for one in facets["year"]["values"]] == [2.5, 7, 2001]
    assert [one["value"] for one in facets["new"]["values"]] == [False, True]
    assert isinstance(shown("number", 1e300), float)
    assert str(shown("number", 2.0**60)) == "1152921504606846976"


def test_fields_that_only_added_documents_have_can_be_used(tmp_path: Path) -> None:
    scene = scene_of(tmp_path / "v1", [{"year": n} for n in range(9)])
    options: dict[str, Any] = {"filter": {"size": 7}, "fields": ["size"], "group_by": "size"}
    for name, value in options.items():
        job = Search(["a"], search=SearchOptions(**{name: value}))
        assert 'there is no field "size"' in refusal(scene.index, job, QUERY[None])
    new = Document("new", "text", {"size": 7, "year": "soon"})
    apply(scene.index, [Change((new,), QUERY[None], (), "d", 0.0)])
    assert scene.answer(QUERY, **options).hits == [[{"id": "new", "score": pytest.approx(1), "size": 7}]]
    assert [hit["id"] for hit in scene.answer(QUERY, filter={"size": {"gt": 6}}).hits[0]] == ["new"]
    for by_size in ({"sort": [{"field": "size"}]}, {"boost": [{"field": "size", "weight": 1}]}):
        assert scene.answer(QUERY, **by_size).hits[0][0]["id"] == "new"
    assert len(scene.answer(QUERY, 50, filter={"year": {"exists": False}}).hits[0]) == 1
    assert scene.answer(QUERY, filter={"size": {"exists": False}}, cursor="").totals == [9]


def random_texts(num: int, seed: int) -> list[str]:
    """Return texts of a few words each; the words are numbers, and low numbers are frequent."""
    draw = random.Random(seed)
    return [" ".join(f"w{min(int(draw.expovariate(0.1)), 59)}" for _ in range(draw.randint(1, 12))) for _ in range(num)]


def scene_of_words(folder: Path, count: int) -> Scene:
    """Return an index with this number of documents, some of them deleted, replaced or added since it was built."""
    ids = [*range(count - 10), *range(count - 20, count - 10)]
    texts = random_texts(len(ids), count)
    documents = [Document(str(n), text, {}) for n, text in zip(ids, texts, strict=True)]
    vectors = np.concatenate([near_ties(count // 2, 1), unit_vectors(count - count // 2, DIMENSION, 2)])
    return Scene.of(folder / "v1", documents, vectors, count - 15, ["0", "1", "2"])


@pytest.mark.parametrize(
    "options", [{"mode": "lexical"}, *({"mode": "hybrid", "alpha": alpha} for alpha in (None, 0.0, 1.0))]
)
def test_hits_of_many_documents_are_as_by_scoring_all(tmp_path: Path, options: dict[str, Any]) -> None:
    scene = scene_of_words(tmp_path, 3_000)
    texts = [*random_texts(12, 1), "unknown", "w59"]
    vectors = np.concatenate([near_ties(7, 1), unit_vectors(7, DIMENSION, 3)])
    for k in (10, 300):
        job = Search(texts, k=k, search=SearchOptions(**options))
        found = scene.index.find(job, vectors).answer().hits
        with scene.index.exact_search.shared(vectors[1:]) as shared:
            assert scene.index.find(job, vectors, shared=shared).answer().hits == found
        for hits, ranked in zip(found, scene.lists(job, vectors), strict=True):
            assert hits == [scene.hit(place, job.search) for place in ranked[:k]]


def test_jobs_of_one_pass_get_the_hits_that_each_gets_alone(queue: Queue, encoder: Encoder, index: Index) -> None:
    hybrid, odd = SearchOptions(mode="hybrid"), SearchOptions(mode="hybrid", fields=["no-such"])
    queries = [f"{text} {n}" for n, text in enumerate(["storm", "rain europe", "unknown", "sun"] * 10)]
    jobs = [Search([query], k=3, reply_to="me", search=hybrid) for query in queries]
    bad = [Search([query], reply_to="me", search=odd) for query in queries[:3]]
    again = [Search([query], k=3, reply_to="me", search=hybrid) for query in queries[::10]]
    worker = Worker(queue.consumer(), encoder, {"default": index}, Bucketing(256))
    queue.put("interactive", [*jobs[:20], *bad, *jobs[20:]])
    drive(worker)
    for job in again:
        queue.put("interactive", [job])
        drive(worker)
    found = {reply.id: reply for reply in queue.inbox("me").wait()}
    for one, other in zip(jobs[::10], again, strict=True):
        together, alone = (found[job.id].hits or [[{}]] for job in (one, other))
        assert [hit["score"] for hit in together[0]] == pytest.approx([hit["score"] for hit in alone[0]], abs=1e-5)
    assert all(isinstance(found[job.id].error, InvalidRequest) for job in bad)


def test_a_score_is_explained_by_its_parts(tmp_path: Path) -> None:
    scene, query = scene_of_words(tmp_path, 300), unit_vectors(1, DIMENSION)[0]
    text = "w3 w17 w1 unknown"
    explained: dict[str, Any] = {"mode": "hybrid", "explain": True}
    best = scene.answer(query, 1, text, mode="lexical").hits[0][0]["score"]
    for hit in scene.answer(query, 300, text, **explained).hits[0]:
        parts = hit["explain"]
        assert hit["score"] == pytest.approx(ALPHA * parts["cosine"] + (1 - ALPHA) * parts["bm25"] / best, abs=1e-5)
        assert sum(parts["words"].values()) == pytest.approx(parts["bm25"], rel=1e-4)
        assert set(parts["words"]) == set(hit["text"].split()) & set(text.split())
    reranked = Search([text], k=2, search=SearchOptions(rerank={"top_n": 3}, **explained))
    (hits,) = scene.index.find(reranked, query[None]).answer([0.1, 0.2, 0.3]).hits
    assert [hit["explain"]["rerank"] for hit in hits] == [0.3, 0.2]


def test_more_lists_than_words_are_kept_for_are_explained_and_each_is_announced(tmp_path: Path) -> None:
    scene, marks = scene_of_words(tmp_path, 300), list[None]()
    texts = [f"w{n}" for n in range(MAX_KEPT_WORDS + 5)]
    vectors = near_ties(len(texts), 4)
    options: dict[str, Any] = {"mode": "hybrid", "explain": True, "snippet": {}}
    job = Search(texts, k=5, search=SearchOptions(**options))
    found = scene.index.find(job, vectors, lambda: marks.append(None)).answer().hits
    alone = [scene.answer(vector, 5, text, **options).hits[0] for text, vector in zip(texts, vectors, strict=True)]
    assert found == alone
    assert len(marks) >= 2 * len(texts)


def test_less_of_a_text_is_read_for_the_snippets_of_many_hits(tmp_path: Path) -> None:
    scene = Scene.of(tmp_path / "v1", [Document("1", "rain " * 600 + "storm", {"tag": "a"})], QUERY[None], 1, [])
    shapes: list[tuple[int, dict[str, Any]]] = [(1, {}), (4, {}), (1, {"group_by": "tag", "group_size": 4})]
    for num_lists, options in shapes:
        job = Search(["storm"] * num_lists, k=1_000, search=SearchOptions(snippet={}, **options))
        hits = scene.index.find(job, np.repeat(QUERY[None], num_lists, axis=0)).answer().hits
        assert [bool(hit["snippet"]["highlights"]) for (hit,) in hits] == [num_lists == 1 and not options] * num_lists
