"""Approximate search: exact among its candidates, and of these it has enough."""

import json
import math
from collections.abc import Generator, Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_search import Vectors, by_scoring_all, grouped, normalised, random, without

from shoal.changes.change import Change
from shoal.errors import IndexCorrupt, InvalidRequest
from shoal.operations import Search
from shoal.operations.search_options import SearchOptions
from shoal.records.document import Document
from shoal.records.source import Source
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.cells import find_margins, make_cells
from shoal_workers.index.build.document_encoder import ModelInfo, Waiting, no_wait
from shoal_workers.index.files.array_file import save_array
from shoal_workers.index.files.manifest import BINARY, CELL_FILES, CELL_STARTS, MANIFEST, MAX_MARGIN, Manifest, checksum
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.ranked_search import SearchAnswer
from shoal_workers.index.vectors.approximate_search import LEAST_ROWS, ApproximateSearch
from shoal_workers.index.vectors.inverted_file import FAR, InvertedFile, Reading, binary, hamming, hamming_in_numpy
from shoal_workers.index.vectors.quantisation import QuantisedVectors
from shoal_workers.index.vectors.ranking import MAX_RANKED
from shoal_workers.index.vectors.search import ExactSearch, SearchThreads

DIMENSION, COUNT = 16, 30_000


def quiet(_: float) -> None:
    """Take a report."""


def search_of(
    vectors: Vectors,
    margin: float = MAX_MARGIN,
    bit_margin: float = 1_000,
    threads: int = 1,
    least_rows: int = LEAST_ROWS,
) -> ApproximateSearch:
    """Return an approximate search of some vectors, by default in all of their cells."""
    quantised, of_threads = QuantisedVectors.of(vectors), SearchThreads(threads)
    file = make_cells(vectors, quantised)
    exact_search = ExactSearch(vectors, quantised, of_threads)
    return ApproximateSearch(exact_search, quantised.basis, file, margin, bit_margin, of_threads, least_rows)


def cells_of(vectors: Vectors) -> InvertedFile:
    """Return the cells of some vectors."""
    return make_cells(vectors, QuantisedVectors.of(vectors))


def mixtures(count: int, dimension: int) -> Vectors:
    """Make vectors between two of a few others, as those of texts lie between subjects."""
    generator, subjects = np.random.default_rng(5), random(300, dimension, 5)
    left, right = generator.integers(len(subjects), size=(2, count))
    share = generator.random((count, 1), np.float32)
    return normalised(share * subjects[left] + (1 - share) * subjects[right] + 0.3 * random(count, dimension, 6))


@pytest.mark.parametrize("find", [hamming, hamming_in_numpy])
@given(st.integers(1, 5_000), st.sampled_from([64, 128, 320]), st.integers(0, 2**32 - 1))
def test_distances_count_the_bits_that_differ(find: Any, count: int, width: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(-127, 128, (count, width)).astype(np.int8)
    query, found = codes[0].copy(), np.empty(count, np.uint16)
    query[::3] *= -1
    spans = np.array([[count // 3, count], [0, count // 3]])
    find(binary(codes), binary(query[None])[:, 0], spans, found)
    found = np.roll(found, count // 3)
    assert (found == ((codes > 0) != (query > 0)).sum(axis=1)).all()


class TestCells:
    @given(st.integers(1, 3_000), st.integers(0, 2**32 - 1))
    def test_each_row_is_in_the_cell_that_is_nearest(self, count: int, seed: int) -> None:
        vectors = grouped(count, 24, seed)
        file = cells_of(vectors)
        assert np.array_equal(np.sort(file.rows), np.arange(count))
        assert (file.sizes > 0).all()
        scores = vectors[file.rows] @ file.centroids.T
        cells = np.repeat(np.arange(len(file.sizes)), file.sizes)
        assert (scores.max(axis=1) - scores[np.arange(count), cells] < 0.05).all()  # scores are estimated by codes

    def test_equal_vectors_make_equal_cells(self) -> None:
        first, second = cells_of(mixtures(9_000, 64)), cells_of(mixtures(9_000, 64))
        assert len(first.sizes) == 36
        for name in ("centroids", "starts", "rows", "words"):
            assert np.array_equal(getattr(first, name), getattr(second, name))

    @given(st.floats(0, 0.5), st.integers(1, 3_000), st.integers(0, 99))
    def test_those_near_a_query_score_nearly_as_high_as_the_nearest(self, margin: float, least: int, row: int) -> None:
        vectors = mixtures(9_000, 64)
        file = cells_of(vectors)
        scores = file.centroids @ vectors[row]
        near = file.near(vectors[row], margin, least, None)
        assert {*near} >= {*np.flatnonzero(scores >= scores.max() - margin)}
        assert file.sizes[near].sum() >= least
        assert scores[near].min() >= np.delete(scores, near).max(initial=-1)

    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.parametrize("num_cells", [1, 3, 36])
    def test_rows_are_read_with_their_distances(self, num_cells: int, threads: int) -> None:
        vectors = mixtures(9_000, 100)
        quantised = QuantisedVectors.of(vectors)
        codes, file, eligible = quantised.codes, make_cells(vectors, quantised), np.arange(9_000) % 3 > 0
        cells, query = np.arange(num_cells), binary(codes[7:8])[:, 0]
        rows = file.rows[: file.starts[num_cells]]
        distances = ((codes[rows] > 0) != (codes[7] > 0)).sum(axis=1)
        plain = file.read(cells, query, None, SearchThreads(threads))
        assert np.array_equal(plain.rows, rows)
        assert np.array_equal(plain.distances, distances)
        filtered = file.read(cells, query, eligible, SearchThreads(threads))
        assert np.array_equal(filtered.distances, np.where(eligible[rows], distances, FAR))
        assert np.array_equal(filtered.nearest(9_000), np.sort(rows[eligible[rows]]))

    def test_about_as_many_rows_as_are_wanted_are_nearest(self) -> None:
        distances = np.random.default_rng(0).binomial(256, 0.4, 200_000).astype(np.uint16)
        distances[::3] = FAR
        reading = Reading(np.arange(200_000, dtype=np.int32), distances)
        at_most_90 = int((distances <= 90).sum())
        for least, farthest, wanted in ((2_000, 0, 2_000), (2_000, 90, at_most_90), (500_000, 0, 133_333)):
            found = reading.nearest(least, farthest)
            assert 0.8 < len(found) / wanted < 1.5  # a distance is a whole number
            assert distances[found].max() <= np.delete(distances, found).min()


@given(
    st.integers(1, 3_000),
    st.integers(1, 40),
    st.integers(1, 500),
    st.integers(0, 10),
    st.integers(0, 2**32 - 1),
)
def test_where_all_cells_are_read_it_finds_what_scoring_all_finds(
    count: int, num_queries: int, k: int, tenths: int, seed: int
) -> None:
    """All rows are candidates then."""
    vectors, queries = grouped(count, 24, seed), grouped(num_queries, 24, seed + 1)
    hidden = np.flatnonzero(np.random.default_rng(seed).random(count) < tenths / 10)
    eligible = np.ones(count, bool)
    eligible[hidden] = False
    k = min(k, count - len(hidden))
    expected = without(vectors, queries, k, hidden)
    found = search_of(vectors).top_k(queries, k, eligible)
    assert (found.rows == expected.rows).all()
    assert (found.scores == expected.scores).all()


@settings(max_examples=20)
@given(st.floats(0, 0.5), st.floats(0, 20), st.integers(1, 300), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_it_is_exact_among_its_candidates(margin: float, bit_margin: float, k: int, threads: int, seed: int) -> None:
    vectors, queries = grouped(COUNT, DIMENSION, 3), grouped(5, DIMENSION, seed)
    eligible = np.random.default_rng(seed).random(COUNT) < 0.9
    search = search_of(vectors, margin, bit_margin, threads)
    found = search.top_k(queries, k, eligible)
    for n, query in enumerate(queries):
        rows = search.candidates(query, eligible)
        assert len(rows) >= MAX_RANKED
        assert eligible[rows].all()
        expected = by_scoring_all(vectors[rows], query[None], k)
        assert (found.rows[n] == rows[expected.rows[0]]).all()
        assert (found.scores[n] == expected.scores[0]).all()


@pytest.mark.parametrize("kind", [pytest.param(mixtures, marks=pytest.mark.wide), random])
@pytest.mark.parametrize(
    "allowed", [lambda rows: rows >= 0, pytest.param(lambda rows: rows % 3 == 0, marks=pytest.mark.wide)]
)
def test_the_candidates_have_the_nearest_neighbours(kind: Any, allowed: Any) -> None:
    """The queries are others than those by which the margin was found. Random vectors are the hardest."""
    vectors, queries = np.split(kind(60_200, 64), [60_000])
    quantised, eligible = QuantisedVectors.of(vectors), allowed(np.arange(60_000))
    margins = find_margins(vectors, quantised, make_cells(vectors, quantised), quiet)
    exact = without(vectors, queries, 10, np.flatnonzero(~eligible)).rows
    found = search_of(vectors, *margins).top_k(queries, 10, eligible).rows
    assert np.mean([np.isin(*rows) for rows in zip(exact, found, strict=True)]) > 0.97


def test_an_index_of_one_document_is_built(tmp_path: Path) -> None:
    assert Index.open(built(tmp_path, count=1)).manifest.num_cells == 1


def test_a_filter_for_what_is_far_from_the_query_finds_the_nearest_of_it() -> None:
    """None of the cells near the query has a row that is eligible."""
    vectors = mixtures(60_000, 64)
    search = search_of(vectors, 0.3, 10)
    for query in vectors[:5]:
        scores = vectors @ query
        eligible = scores < np.quantile(scores, 0.5)
        exact = without(vectors, query[None], 10, np.flatnonzero(~eligible)).rows[0]
        found = search.top_k(query[None], 10, eligible).rows[0]
        assert np.isin(exact, found).mean() >= 0.7  # of those, not one is found where only near cells are read


@pytest.mark.parametrize("vectors", [np.zeros((500, 16), np.float32), np.repeat(random(1, 100), 500, axis=0)])
def test_equal_vectors_come_by_row(vectors: Vectors) -> None:
    found = search_of(vectors, 0, 0).top_k(vectors[:2], 9, np.ones(len(vectors), bool))
    assert found.rows.tolist() == [list(range(9))] * 2


class GroupedVectors:
    """An encoder of numbered texts: the vector of each is one of many that lie in groups."""

    def __init__(self) -> None:
        self.model = ModelInfo("made", "a" * 64, "mean", DIMENSION, "", "f1")
        self.vectors = grouped(COUNT, DIMENSION)

    def embed(self, texts: Iterable[str], waiting: Waiting = no_wait) -> Generator[NDArray[np.float32]]:
        """Yield the vectors of the texts, a few at a time."""
        source = iter(texts)
        while group := list(islice(source, 256)):
            yield self.vectors[[int(text.split()[1]) for text in group]]


def built(folder: Path, count: int = COUNT, **options: Any) -> Path:
    """Build an index of numbered documents for approximate search."""
    source = folder / "source.jsonl"
    lines = (json.dumps({"id": str(n), "text": f"storm {n}", "part": n % 100}) + "\n" for n in range(count))
    source.write_text("".join(lines))
    build(Source(source), folder / "index", GroupedVectors(), **{"approximate": True, **options})
    return folder / "index"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index for approximate search."""
    return built(tmp_path_factory.mktemp("approximate"))


def answer(index: Index, query: Vectors, k: int = 10, **options: Any) -> SearchAnswer:
    """Return the answer to a search for one vector."""
    return index.answer(Search(["storm"], k=k, search=SearchOptions(**options)), query[None])


def opened(folder: Path) -> Index:
    """Open an index whose searches are approximate, although it has so few rows that exact ones are quicker."""
    index = Index.open(folder)
    index.approximate_search = search_of(index.vectors, 0.2, 5, least_rows=30_000)
    return index


def ids(found: SearchAnswer) -> list[str]:
    """Return the ids of the only list."""
    (hits,) = found.hits
    return [hit["id"] for hit in hits]


QUERIES = grouped(40, DIMENSION, 7)


class TestAnIndex:
    def test_its_files_have_checksums(self, folder: Path) -> None:
        manifest = Manifest.read(current_version(folder))
        assert manifest.checksums.keys() >= {*CELL_FILES}
        assert 0 < manifest.num_cells < manifest.count

    def test_it_is_searched_exactly_where_that_is_as_quick(self, folder: Path) -> None:
        index = Index.open(folder)
        assert index.approximate_search
        assert not index.is_approximate
        found = answer(index, QUERIES[0], exact=False)
        assert found == answer(index, QUERIES[0], exact=True)
        assert not found.approximate

    def test_its_files_are_read_as_they_were_written(self, folder: Path) -> None:
        index = Index.open(folder)
        manifest, expected = index.manifest, cells_of(index.vectors)
        file = InvertedFile.open(index.folder, COUNT, DIMENSION, manifest.quantised_width, manifest.num_cells)
        for name in ("centroids", "starts", "rows", "words"):
            assert np.array_equal(getattr(file, name), getattr(expected, name))

    def test_it_tells_that_hits_may_be_missing(self, folder: Path) -> None:
        index = opened(folder)
        found, exact = answer(index, QUERIES[0]), answer(index, QUERIES[0], exact=True)
        assert (found.approximate, exact.approximate) == (True, False)
        assert answer(index, QUERIES[0], exact=False).approximate
        assert ids(exact) == [str(row) for row in by_scoring_all(np.array(index.vectors), QUERIES[:1], 10).rows[0]]

    def test_most_hits_are_those_of_an_exact_search(self, folder: Path) -> None:
        index = opened(folder)
        exact = [ids(answer(index, query, exact=True)) for query in QUERIES]
        plain = [[hit["id"] for hit in hits] for hits in index.search(QUERIES, 10)]
        assert plain == [ids(answer(index, query)) for query in QUERIES]
        shared = sum(len({*one} & {*other}) for one, other in zip(plain, exact, strict=True))
        assert shared > 0.97 * 10 * len(QUERIES)

    def test_a_filter_that_leaves_few_is_exact(self, folder: Path) -> None:
        index = opened(folder)
        wanted = {"part": {"lt": 40}}
        assert not (found := answer(index, QUERIES[1], filter=wanted)).approximate
        assert found == answer(index, QUERIES[1], filter=wanted, exact=True)

    def test_a_filter_that_leaves_many_has_all_hits(self, folder: Path) -> None:
        index = opened(folder)
        found = answer(index, QUERIES[1], k=1_000, filter={"part": {"lt": 90}})
        assert found.approximate
        assert len(ids(found)) == 1_000
        assert all(hit["part"] < 90 for hit in found.hits[0])

    def test_words_orders_and_boosts_are_exact(self, folder: Path) -> None:
        index = opened(folder)
        for options in (
            {"mode": "hybrid"},
            {"mode": "lexical"},
            {"boost": [{"field": "part", "weight": 0.5}]},
            {"sort": [{"field": "part"}], "filter": {"part": {"lt": 40}}},
        ):
            assert not answer(index, QUERIES[2], **options).approximate, options

    def test_a_longer_list_begins_with_a_shorter_one(self, folder: Path) -> None:
        index = opened(folder)
        long = ids(answer(index, QUERIES[3], k=1_000))
        for k in (1, 10, 400):
            assert ids(answer(index, QUERIES[3], k=k)) == long[:k]

    def test_pages_are_the_list_in_parts(self, folder: Path) -> None:
        index = opened(folder)
        found, cursor = list[str](), ""
        for _ in range(5):
            page = answer(index, QUERIES[4], k=40, cursor=cursor)
            found += ids(page)
            (cursor,) = page.cursors or [""]  # type: ignore[assignment]
            assert page.totals == [COUNT]
        assert found == ids(answer(index, QUERIES[4], k=200))

    def test_groups_have_the_best_documents(self, folder: Path) -> None:
        index = opened(folder)
        found = answer(index, QUERIES[5], group_by="part", group_size=2)
        assert found.approximate
        parts = [hit["part"] for hit in found.hits[0]]
        assert len({*parts}) == 10
        assert max(map(parts.count, parts)) <= 2

    def test_documents_that_were_added_and_deleted_count_at_once(self, folder: Path) -> None:
        index = opened(folder)
        before = ids(answer(index, QUERIES[6]))
        change = Change((Document("new", "storm", {}),), QUERIES[6:7], (before[0],), "d", 0.0)
        index.live = index.live.after([change], "1-1", index.rows_of)
        after = ids(answer(index, QUERIES[6]))
        assert after[:9] == ["new", *before[1:9]]
        assert [hit["id"] for hit in index.search(QUERIES[6:7], 10)[0]] == after
        assert index.is_approximate


CONTRADICTIONS = [
    *({"num_cells": -1}, {"num_cells": COUNT + 1}, {"num_cells": "1"}),
    *({"cell_margin": -0.1}, {"cell_margin": 3.0}, {"cell_margin": math.nan}, {"bit_margin": -1.0}),
    {"candidate_share": 1.1},
]


class TestBadInput:
    def test_an_index_for_exact_search_refuses_an_approximate_one(self, tmp_path: Path) -> None:
        index = Index.open(built(tmp_path, 200, approximate=False))
        with pytest.raises(InvalidRequest, match=r"exact is false, but version .* leave exact out, or build"):
            answer(index, QUERIES[0], exact=False)
        assert not answer(index, QUERIES[0], exact=True).approximate

    @pytest.mark.parametrize("starts", [[0, 200, 299], [1, 200, 300], [0, 301, 300], [0, 300]])
    def test_cells_that_no_build_wrote_are_refused(self, tmp_path: Path, starts: list[int]) -> None:
        save_array(tmp_path / CELL_STARTS, np.array(starts))
        with pytest.raises(IndexCorrupt, match="build the index again"):
            InvertedFile.open(tmp_path, 300, 16, 64, 2)

    def test_rows_that_no_build_wrote_are_told(self, folder: Path) -> None:
        index = Index.open(folder)
        quantised = QuantisedVectors.of(index.vectors)
        file = make_cells(index.vectors, quantised)
        damaged = replace(file, rows=np.full_like(file.rows, COUNT))
        index.approximate_search = ApproximateSearch(
            index.exact_search, quantised.basis, damaged, 0.3, 0.1, least_rows=1
        )
        with pytest.raises(IndexCorrupt, match="build the index again"):
            answer(index, QUERIES[0])

    @pytest.mark.parametrize("change", CONTRADICTIONS)
    def test_a_manifest_that_contradicts_itself_is_refused(
        self, folder: Path, tmp_path: Path, change: dict[str, Any]
    ) -> None:
        values = json.loads((current_version(folder) / MANIFEST).read_text())
        (tmp_path / MANIFEST).write_text(json.dumps(values | change))
        with pytest.raises(IndexCorrupt, match=r"num_cells|cell_margin|candidate_share"):
            Manifest.read(tmp_path)


def test_an_index_of_an_earlier_release_is_searched_exactly(tmp_path: Path) -> None:
    """It has bits of the vectors in place of cells."""
    version = current_version(built(tmp_path, 200, approximate=False))
    (version / BINARY).write_bytes(b"bits")
    values = json.loads((version / MANIFEST).read_text())
    values["checksums"][BINARY] = checksum(version / BINARY)
    (version / MANIFEST).write_text(json.dumps(values | {"num_candidates": 150}))
    assert_exact(Index.open(tmp_path / "index"))


@pytest.mark.parametrize(("approximate", "candidate_share"), [(True, 0.1), (False, 0.0)])
def test_an_index_whose_manifest_has_the_rule_of_an_earlier_release_is_searched_exactly(
    tmp_path: Path, approximate: bool, candidate_share: float
) -> None:
    version = current_version(built(tmp_path, 200, approximate=approximate))
    values = json.loads((version / MANIFEST).read_text())
    del values["bit_margin"]
    (version / MANIFEST).write_text(json.dumps(values | {"candidate_share": candidate_share}))
    assert_exact(Index.open(tmp_path / "index"))


def assert_exact(index: Index) -> None:
    """Check that it is searched exactly, and that nothing else can be asked for."""
    assert not index.is_approximate
    assert not answer(index, QUERIES[0]).approximate
    with pytest.raises(InvalidRequest, match="was not built for approximate search"):
        answer(index, QUERIES[0], exact=False)
