"""Searches with options find exactly what a full sort of all documents finds, before and after changes of the index."""

import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changes import unit_vectors
from hypothesis import given
from hypothesis import strategies as st
from made_documents import DIMENSION, Made, Vectors, apply, fields_of, made_of, near_ties, open_made

from shoal.changes.change import Change
from shoal.errors import InvalidRequest
from shoal.operations import Search
from shoal.operations.search_options import SearchOptions
from shoal.records.document import Document
from shoal_workers.index.index import Index
from shoal_workers.index.query import NEGATIVE_WEIGHT
from shoal_workers.index.search.pages import Cursor

Hit = dict[str, Any]


def vectors_of_queries(made: Made, job: Search, vectors: Vectors) -> Iterator[tuple[Vectors, set[str]]]:
    """Yield the vector of each list of hits, and the ids of the documents that are none of its hits."""
    search, num_positive = job.search, len(job.texts) - job.search.num_negative
    asked: list[tuple[Vectors, set[str]]] = [(vector, set()) for vector in vectors[:num_positive]]
    asked += [(unit(np.array(vector)), set()) for vector in search.vectors or ()]
    for liked in search.like or ():
        like = [v for d, v in zip(made.documents, made.vectors, strict=True) if d.id == liked]
        asked.append((unit(np.mean(np.array(like), axis=0)), {liked}))
    if search.fuse:
        asked = [(unit(np.mean([vector for vector, _ in asked], axis=0)), set().union(*(ids for _, ids in asked)))]
    for vector, ids in asked:
        away = NEGATIVE_WEIGHT * vectors[num_positive:].mean(axis=0) if search.num_negative else None
        yield (vector if away is None else unit(vector - away)), ids


def unit(vector: Any) -> Vectors:
    """Scale a vector to length 1."""
    exact = vector.astype(np.float64)
    return np.asarray(exact / max(float(np.linalg.norm(exact)), 1e-12), np.float32)


def by_scoring_all(made: Made, job: Search, vectors: Vectors) -> list[list[list[Hit]]]:
    """Return for each list all its groups of hits, found by comparing every document."""
    lists = []
    for vector, excluded in vectors_of_queries(made, job, vectors):
        scores = np.vecdot(np.stack(made.vectors), vector) if made.vectors else np.empty(0)
        ranked = [(made.documents[n], float(scores[n])) for n in np.argsort(-scores, kind="stable")]
        ranked = [(d, score) for d, score in ranked if d.id not in excluded]
        least = job.search.min_score
        lists.append(list(grouped([pair for pair in ranked if least is None or pair[1] >= least], job.search)))
    return lists


def grouped(ranked: list[tuple[Document, float]], search: SearchOptions) -> Iterable[list[Hit]]:
    """Return the hits in their groups."""
    groups: dict[Any, list[Hit]] = {}
    for number, (document, score) in enumerate(ranked):
        value = document.fields.get(search.group_by) if search.group_by else None
        found = {"text": document.text, **document.fields}
        kept = {name: found[name] for name in (found if search.fields is None else search.fields) if name in found}
        hit = {"id": document.id, "score": score, **kept}
        if search.explain:
            hit["explain"] = {"mode": "dense", "cosine": score}
        groups.setdefault(("none", number) if value is None else ("some", value), []).append(hit)
    return [group[: search.group_size if search.group_by else 1] for group in groups.values()]


@st.composite
def searches(draw: st.DrawFn, documents: list[Document], pool: Vectors) -> tuple[Search, Vectors]:
    """Draw a job, and the vectors of its texts."""
    ids = sorted({one.id for one in documents})
    names = sorted({name for one in documents for name, value in one.fields.items() if value is not None})
    group_by = draw(st.sampled_from([None, "", *names]))
    like = draw(st.none() | st.lists(st.sampled_from(ids), min_size=1, max_size=3)) if ids else None
    given_vectors = draw(st.none() | st.lists(st.sampled_from(range(len(pool))), min_size=1, max_size=3))
    num_texts = draw(st.integers(0 if like or given_vectors else 1, 3))
    num_negative = draw(st.integers(0, 2))
    options: dict[str, Any] = {
        "like": like,
        "vectors": given_vectors and [(3 * pool[n]).tolist() for n in given_vectors],
        "num_negative": num_negative,
        "fuse": draw(st.booleans()),
        "min_score": draw(st.none() | st.sampled_from([-0.2, 0.0, 0.3, 0.9])),
        "group_by": group_by,
        "group_size": draw(st.integers(1, 3)) if group_by else 1,
        "fields": draw(st.none() | st.lists(st.sampled_from(["text", *names]), unique=True)),
        "explain": draw(st.booleans()),
    }
    chosen = draw(st.lists(st.integers(0, len(pool) - 1), min_size=num_texts + num_negative, max_size=num_texts + 2))
    chosen = chosen[: num_texts + num_negative]
    job = Search([f"text {n}" for n in chosen], k=draw(st.sampled_from([1, 3, 50])), search=SearchOptions(**options))
    return job, pool[chosen].reshape(len(chosen), DIMENSION)


@given(st.data())
def test_a_search_with_options_finds_what_scoring_all_documents_finds(data: st.DataObject) -> None:
    seed, count = data.draw(st.integers(0, 1_000)), data.draw(st.integers(1, 70))
    pool = data.draw(st.sampled_from([near_ties, lambda n, s: unit_vectors(n, DIMENSION, s)]))(120, seed)
    made = made_of(count, pool, data.draw(st.integers(1, count)))
    with tempfile.TemporaryDirectory() as folder:
        index = open_made(Path(folder) / "v1", made)
        ids = [str(n % 90) for n in range(len(pool))]
        deleted = data.draw(st.lists(st.sampled_from(ids), max_size=8))
        added = data.draw(st.lists(st.integers(0, len(pool) - 1), min_size=not deleted, max_size=30))
        apply(index, [made.change(added, ids, deleted, pool)])
        job, vectors = data.draw(searches(made.documents, pool))
        expected = by_scoring_all(made, job, vectors)
        found = index.answer(job, vectors)
        assert found.hits == [[hit for group in groups[: job.k] for hit in group] for groups in expected]
        if job.num_lists == 1:
            check_pages(index, job, vectors, expected[0])
        check_second_stage(index, job, vectors, expected)


def check_pages(index: Index, job: Search, vectors: Vectors, groups: list[list[Hit]]) -> None:
    """Assert that the pages of a search are the same hits, one after the other."""
    cursor: str | None = ""
    for start in range(0, max(1, len(groups)), job.k):
        assert cursor is not None
        page = index.answer(replace(job, search=replace(job.search, cursor=cursor)), vectors)
        assert page.hits == [[hit for group in groups[start : start + job.k] for hit in group]]
        assert page.cursors is not None
        cursor = page.cursors[0]
    assert cursor is None


def check_second_stage(index: Index, job: Search, vectors: Vectors, lists: list[list[list[Hit]]]) -> None:
    """Assert that the best groups are scored again, and the best of these answered; many of the scores are equal."""
    search = replace(job.search, rerank={"top_n": job.k + 3, "query": "storm"})
    stage = index.find(replace(job, search=search), vectors)
    scores = [0.1 * (7 * number % 5) for number in range(len(stage.pairs))]
    following, wanted = iter(scores), []
    for groups in lists:
        again = [sorted((rescored(hit, next(following)) for hit in g), key=by_score) for g in groups[: job.k + 3]]
        again.sort(key=lambda group: by_score(group[0]))
        wanted.append([hit for group in again[: job.k] for hit in group])
    assert next(following, None) is None
    assert stage.answer(scores).hits == wanted


def rescored(hit: Hit, score: float) -> Hit:
    """Return the hit with the score of the reranker."""
    return hit | {"score": score} | ({"explain": hit["explain"] | {"rerank": score}} if "explain" in hit else {})


def by_score(hit: Hit) -> float:
    """Return the key by which hits are sorted."""
    return -float(hit["score"])


@pytest.fixture
def made() -> Made:
    """Forty documents."""
    return made_of(40, unit_vectors(40, DIMENSION, 7))


def ids_of(index: Index, job: Search, vectors: Vectors) -> list[str]:
    """Return the ids of the hits of a search with one list."""
    return [hit["id"] for hit in index.answer(job, vectors).hits[0]]


def test_a_document_that_is_added_or_deleted_between_two_pages_shifts_no_other(made: Made, tmp_path: Path) -> None:
    index = open_made(tmp_path / "v1", made)
    query, job = unit_vectors(1, DIMENSION, 1), Search(["storm"], k=10, search=SearchOptions(cursor=""))
    whole = ids_of(index, replace(job, k=40), query)
    page = index.answer(job, query)
    pool = np.concatenate([query, query])
    apply(index, [made.change([0, 1], ["new", "other"], [whole[2], whole[9], whole[20]], pool)])
    assert page.cursors is not None
    rest = replace(job, k=30, search=SearchOptions(cursor=page.cursors[0]))
    assert ids_of(index, rest, query) == [n for n in whole[10:] if n != whole[20]]


def test_a_page_begins_after_the_last_hit_although_its_score_has_changed_in_the_last_digits(
    made: Made, tmp_path: Path
) -> None:
    index = open_made(tmp_path / "v1", made)
    query, job = unit_vectors(1, DIMENSION, 1), Search(["storm"], k=10, search=SearchOptions(cursor=""))
    page = index.answer(job, query)
    assert page.cursors is not None
    other = np.nextafter(query, np.float32(2))
    rest = ids_of(index, replace(job, search=SearchOptions(cursor=page.cursors[0])), other)
    assert rest == ids_of(index, replace(job, k=20), query)[10:]


def test_a_page_begins_where_the_one_before_ended_although_its_last_document_was_replaced(
    made: Made, tmp_path: Path
) -> None:
    index = open_made(tmp_path / "v1", made)
    query = unit_vectors(1, DIMENSION, 1)
    pool = np.concatenate([query, -query])
    apply(index, [made.change([0], ["new"], [], pool)])
    job = Search(["storm"], k=1, search=SearchOptions(cursor=""))
    page = index.answer(job, query)
    assert page.hits[0][0]["id"] == "new"
    assert page.cursors is not None
    apply(index, [made.change([1], ["new", "new"], [], pool)], "1-2")
    rest = ids_of(index, replace(job, k=50, search=SearchOptions(cursor=page.cursors[0])), query)
    assert rest == ids_of(index, replace(job, k=50, search=SearchOptions()), query)


@pytest.mark.parametrize("is_added", [False, True])
def test_a_page_in_the_order_of_a_field_begins_after_a_document_that_was_deleted_since(
    made: Made, is_added: bool, tmp_path: Path
) -> None:
    index = open_made(tmp_path / "v1", made)
    query = unit_vectors(1, DIMENSION, 1)
    if is_added:
        pool = unit_vectors(10, DIMENSION, 2)
        apply(index, [made.change([9], [str(n) for n in range(10)], [], pool)])
    job = Search(["storm"], k=10, search=SearchOptions(cursor="", sort=[{"field": "n"}]))
    page = index.answer(job, query)
    assert [hit["n"] for hit in page.hits[0]] == [*range(10)]
    assert page.cursors is not None
    deleted = ["9"] if is_added else ["9", "3", "20"]
    apply(index, [made.change([], [], deleted, query)], "1-2")
    rest = index.answer(replace(job, k=40, search=replace(job.search, cursor=page.cursors[0])), query)
    assert [hit["n"] for hit in rest.hits[0]] == [n for n in range(10, 40) if str(n) not in deleted]
    assert rest.totals == [40 - len(deleted)]


def test_a_third_page_in_the_order_of_a_field_begins_after_an_added_document_that_was_deleted_since(
    made: Made, tmp_path: Path
) -> None:
    index = open_made(tmp_path / "v1", made)
    query = unit_vectors(1, DIMENSION, 1)
    apply(index, [made.change([9], [str(n) for n in range(10)], [], unit_vectors(10, DIMENSION, 2))])
    job = Search(["storm"], k=5, search=SearchOptions(cursor="", sort=[{"field": "n"}]))
    found, cursor = list[int](), ""
    for _ in range(2):
        page = index.answer(replace(job, search=replace(job.search, cursor=cursor)), query)
        found += [hit["n"] for hit in page.hits[0]]
        (cursor,) = [each or "" for each in page.cursors or []]
    assert found == [*range(10)]
    apply(index, [made.change([], [], ["9"], query)], "1-2")
    third = index.answer(replace(job, k=40, search=replace(job.search, cursor=cursor)), query)
    assert [hit["n"] for hit in third.hits[0]] == [*range(10, 40)]


def test_totals_count_the_documents_that_could_be_hits(made: Made, tmp_path: Path) -> None:
    index = open_made(tmp_path / "v1", made)
    job = Search([], k=5, search=SearchOptions(cursor="", like=["7"]))
    assert index.answer(job, np.empty((0, DIMENSION), np.float32)).totals == [39]
    apply(index, [made.change([3], ["x"] * 4, ["1", "2"], unit_vectors(4, DIMENSION, 3))])
    assert index.answer(job, np.empty((0, DIMENSION), np.float32)).totals == [38]


def refusal(index: Index, job: Search, vectors: Vectors) -> str:
    """Return the message with which a search is refused; nothing keeps the index after that."""
    try:
        index.answer(job, vectors)
    except InvalidRequest as error:
        return error.message
    return ""


@pytest.mark.parametrize("cursor", ["!", "abc", "gaFjkwECAw", "{}", "ä" * 10])
def test_a_cursor_that_no_search_has_answered_is_refused(made: Made, cursor: str, tmp_path: Path) -> None:
    index = open_made(tmp_path / "v1", made)
    job = Search(["a"], search=SearchOptions(cursor=cursor))
    assert refusal(index, job, unit_vectors(1, DIMENSION, 1)).startswith("cursor is ")


@pytest.mark.parametrize(
    "forged",
    [
        {"num_shown": -1},
        {"num_shown": 2**63},
        {"row": -1},
        {"score": math.nan},
        {"now": math.inf},
        {"best_bm25": 1e-300},
        {"best_bm25": -1.0},
    ],
)
def test_a_cursor_with_numbers_that_no_search_answers_is_refused(forged: dict[str, Any]) -> None:
    cursor = Cursor("d", "v1", 10, 0.5, 7, "", 1e9, 2.0)
    assert Cursor.unpack(cursor.pack()) == cursor
    with pytest.raises(InvalidRequest, match="which no search has answered"):
        Cursor.unpack(replace(cursor, **forged).pack())


@pytest.mark.parametrize("changed", [{"texts": ["b"]}, {"index": "other"}, {"search": SearchOptions(min_score=0.5)}])
def test_a_cursor_of_another_search_is_refused(made: Made, changed: dict[str, Any], tmp_path: Path) -> None:
    index = open_made(tmp_path / "v1", made)
    query, job = unit_vectors(1, DIMENSION, 1), Search(["a"], search=SearchOptions(cursor=""))
    page = index.answer(job, query)
    assert page.cursors is not None
    other = replace(job, **changed)
    other = replace(other, search=replace(other.search, cursor=page.cursors[0]))
    assert "of another search" in refusal(index, other, query)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"group_by": "topic"}, 'group_by: there is no field "topic": the index has "group", "n"'),
        ({"group_by": "text"}, 'group_by: there is no field "text": text is no field with values'),
        ({"fields": ["id", "n", "topic"]}, 'fields[2]: there is no field "topic": the index has "group", "n"'),
        ({"facets": ["n", "topic"]}, 'facets[1]: there is no field "topic": the index has "group", "n"'),
        ({"group_size": 3}, "group_size is 3, without group_by: name the field"),
        ({"group_size": 3, "group_by": ""}, "group_size is 3, without group_by: name the field"),
    ],
)
def test_a_name_that_no_document_has_and_a_size_without_groups_are_refused(
    made: Made, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    index = open_made(tmp_path / "v1", made)
    query = unit_vectors(1, DIMENSION, 1)
    assert refusal(index, Search(["a"], search=SearchOptions(**options)), query).startswith(words)


def test_a_field_can_be_named_once_a_document_that_was_added_has_it(made: Made, tmp_path: Path) -> None:
    index, query = open_made(tmp_path / "v1", made), unit_vectors(1, DIMENSION, 1)
    job = Search(["a"], k=1, search=SearchOptions(fields=["topic"], group_by="topic"))
    assert 'there is no field "topic"' in refusal(index, job, query)
    apply(index, [Change((Document("x", "a", {"topic": "rain"}),), query, (), "d", 0.0)])
    assert index.answer(job, query).hits == [[{"id": "x", "score": pytest.approx(1), "topic": "rain"}]]


def test_an_unknown_id_and_a_vector_of_another_length_are_refused(made: Made, tmp_path: Path) -> None:
    index = open_made(tmp_path / "v1", made)
    none = np.empty((0, DIMENSION), np.float32)
    like = Search([], search=SearchOptions(like=["7", "nobody"]))
    short = Search([], search=SearchOptions(vectors=[[1.0, 2.0]]))
    assert refusal(index, like, none).startswith('like[1] is "nobody"')
    assert refusal(index, short, none) == "vectors[0] has 2 numbers: the vectors of this index have 12"


@pytest.mark.parametrize("length", [1e-300, 1e-13, 1e14])
def test_a_given_vector_may_have_any_length_but_0(made: Made, length: float, tmp_path: Path) -> None:
    index = open_made(tmp_path / "v1", made)
    none = np.empty((0, DIMENSION), np.float32)
    given_vectors = [(length * made.vectors[3].astype(np.float64)).tolist()]
    (hits,) = index.answer(Search([], k=1, search=SearchOptions(vectors=given_vectors)), none).hits
    assert (hits[0]["id"], hits[0]["score"]) == ("3", pytest.approx(1, abs=1e-6))


def test_groups_are_of_values_that_filters_call_equal(tmp_path: Path) -> None:
    values: list[Any] = ["a", ["a"], ["a", "b"], ["a", "b"], ["b", "a"], "b", "", None, [], "c", "a"]
    documents = [Document(str(n), "text", fields_of(n) | {"of": value}) for n, value in enumerate(values)]
    made = Made(documents, list(unit_vectors(len(values), DIMENSION, 3)))
    index = open_made(tmp_path / "v1", made)
    added = [
        Document("x", "text", {"of": "a"}),
        Document("y", "text", {"of": "new"}),
        Document("z", "text", {"of": "new"}),
    ]
    index.live = index.live.after(
        [Change(tuple(added), unit_vectors(3, DIMENSION, 5), ("0",), "d", 0.0)], "1-1", index.rows_of
    )
    job = Search(["a"], k=20, search=SearchOptions(group_by="of", group_size=9, fields=["of"]))
    query = unit_vectors(1, DIMENSION, 4)
    found = [hit["id"] for hit in index.answer(job, query).hits[0]]
    groups = [{"1", "10", "x"}, {"2", "3"}, {"4"}, {"5"}, {"6"}, {"7"}, {"8"}, {"9"}, {"y", "z"}]
    assert {frozenset(found[n : n + len(group)]) for n in range(13) for group in groups} >= set(map(frozenset, groups))
    assert len(found) == 13
    leads = index.answer(replace(job, search=replace(job.search, group_size=1)), query).hits[0]
    assert len(leads) == len(groups)


def test_groups_are_told_apart_by_value_and_type(tmp_path: Path) -> None:
    values: list[Any] = [1, True, "1", 1.5, [1], {"a": 1}, None, None, 1, [1]]
    documents = [Document(str(n), "text", fields_of(n) | {"of": value}) for n, value in enumerate(values)]
    index = open_made(tmp_path / "v1", Made(documents, list(unit_vectors(len(values), DIMENSION, 3))))
    job = Search(["a"], k=10, search=SearchOptions(group_by="of", group_size=5, fields=["of"]))
    hits = index.answer(job, unit_vectors(1, DIMENSION, 4)).hits[0]
    assert len(hits) == 10
    assert (
        len(index.answer(replace(job, search=replace(job.search, group_size=1)), unit_vectors(1, 12, 4)).hits[0]) == 8
    )
