"""Approximate search: exact among its candidates, and of these it has enough."""

import json
import logging
from collections.abc import Generator, Iterable
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
from shoal.jobs import Job
from shoal.records.document import Document
from shoal.records.source import Source
from shoal.search_options import SearchOptions
from shoal_workers.index.build.binary_step import find_num_candidates
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.document_encoder import ModelInfo, Waiting, no_wait
from shoal_workers.index.files.array_file import save_array
from shoal_workers.index.files.manifest import BINARY, MANIFEST, Manifest
from shoal_workers.index.index import Index, current_version
from shoal_workers.index.ranked_search import SearchAnswer
from shoal_workers.index.search.approximate_search import LEAST_CANDIDATES, LEAST_ROWS, ApproximateSearch
from shoal_workers.index.search.binary_codes import BLOCK, BinaryCodes, binary, hamming
from shoal_workers.index.search.quantisation import QuantisedVectors
from shoal_workers.index.search.ranking import MAX_RANKED
from shoal_workers.index.search.search import ExactSearch
from shoal_workers.index.search.search_threads import SearchThreads

DIMENSION, COUNT = 16, 30_000


def quiet(_: float) -> None:
    """Take a report."""


def search_of(vectors: Vectors, num_candidates: int, threads: int = 1) -> ApproximateSearch:
    """Return an approximate search of some vectors."""
    quantised, of_threads = QuantisedVectors.of(vectors), SearchThreads(threads)
    codes = BinaryCodes.of(binary(quantised.codes))
    exact_search = ExactSearch(vectors, quantised, of_threads)
    return ApproximateSearch(exact_search, quantised.basis, codes, num_candidates, of_threads)


def mixtures(count: int, dimension: int) -> Vectors:
    """Make vectors between two of a few others, as those of texts lie between subjects."""
    generator, subjects = np.random.default_rng(5), random(300, dimension, 5)
    left, right = generator.integers(len(subjects), size=(2, count))
    share = generator.random((count, 1), np.float32)
    return normalised(share * subjects[left] + (1 - share) * subjects[right] + 0.3 * random(count, dimension, 6))


class TestBits:
    @given(st.integers(1, 500), st.sampled_from([64, 128, 320]), st.integers(0, 2**32 - 1))
    def test_distances_count_the_bits_that_differ(self, count: int, width: int, seed: int) -> None:
        codes = np.random.default_rng(seed).integers(-127, 128, (count, width)).astype(np.int8)
        query = codes[0].copy()
        query[::3] *= -1
        expected = ((codes > 0) != (query > 0)).sum(axis=1)
        assert (hamming(binary(codes), binary(query[None])[:, 0]) == expected).all()

    def test_they_are_written_as_they_are_read(self, tmp_path: Path) -> None:
        codes = np.random.default_rng(0).integers(-127, 128, (BLOCK + 700, 128)).astype(np.int8)
        reports: list[float] = []
        BinaryCodes.write(tmp_path, codes, reports.append)
        found = BinaryCodes.open(tmp_path, *codes.shape)
        assert (found.words == binary(codes)).all()
        assert reports == sorted(reports)
        query = binary(codes[:1])[:, 0]
        assert (found.all_distances(query) == ((codes > 0) != (codes[0] > 0)).sum(axis=1)).all()

    def test_about_as_many_rows_as_are_wanted_lie_within_a_distance(self) -> None:
        words = binary(np.random.default_rng(0).integers(-127, 128, (200_000, 256)).astype(np.int8))
        codes = BinaryCodes.of(words)
        distances = codes.all_distances(words[:, 7])
        eligible = np.arange(200_000) % 5 > 1
        for wanted in (2_000, 20_000):
            is_near = distances <= codes.nearest(words[:, 7], wanted / 200_000)
            assert 0.7 < is_near.sum() / wanted < 1.7  # a distance is a whole number
            is_near = distances <= codes.nearest(words[:, 7], wanted / 200_000, eligible)
            assert 0.7 < is_near[eligible].sum() / wanted < 1.7


@given(
    st.integers(1, 3_000),
    st.integers(1, 40),
    st.integers(1, 500),
    st.integers(0, 10),
    st.integers(1, 3_000),
    st.integers(0, 2**32 - 1),
)
def test_where_all_rows_are_candidates_it_finds_what_scoring_all_finds(
    count: int, num_queries: int, k: int, tenths: int, num_candidates: int, seed: int
) -> None:
    """They are, where fewer than `MAX_RANKED` may be found."""
    vectors, queries = grouped(count, 24, seed), grouped(num_queries, 24, seed + 1)
    hidden = np.flatnonzero(np.random.default_rng(seed).random(count) < tenths / 10)
    eligible = np.ones(count, bool)
    eligible[hidden] = False
    search, k = search_of(vectors, min(num_candidates, count)), min(k, count - len(hidden))
    expected = without(vectors, queries, k, hidden)
    for found in (search.top_k(queries, k, hidden), search.top_k(queries, k, eligible=eligible)):
        assert (found.rows == expected.rows).all()
        assert (found.scores == expected.scores).all()


@settings(max_examples=20)
@given(st.integers(10_000, COUNT), st.integers(1, 300), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_it_is_exact_among_its_candidates(num_candidates: int, k: int, threads: int, seed: int) -> None:
    vectors, queries = grouped(COUNT, DIMENSION, 3), grouped(5, DIMENSION, seed)
    hidden = np.flatnonzero(np.random.default_rng(seed).random(COUNT) < 0.1)
    search = search_of(vectors, num_candidates, threads)
    found = search.top_k(queries, k, hidden)
    bits = binary(QuantisedVectors.of(vectors).basis.encode_queries(queries).codes)
    for n, query in enumerate(queries):
        rows = search.candidates(bits[:, n], hidden, None)
        assert len(rows) >= MAX_RANKED
        assert not np.isin(rows, hidden).any()
        expected = by_scoring_all(vectors[rows], query[None], k)
        assert (found.rows[n] == rows[expected.rows[0]]).all()
        assert (found.scores[n] == expected.scores[0]).all()


@pytest.mark.parametrize("kind", [mixtures, random])
def test_the_candidates_have_the_nearest_neighbours(kind: Any) -> None:
    """The queries are others than those by which their number was found. Random vectors are the hardest."""
    vectors, queries = np.split(kind(60_200, 64), [60_000])
    quantised = QuantisedVectors.of(vectors)
    num_candidates = find_num_candidates(vectors, quantised, BinaryCodes.of(binary(quantised.codes)), quiet)
    assert num_candidates < len(vectors)
    exact = by_scoring_all(vectors, queries, 10).rows
    found = search_of(vectors, num_candidates).top_k(queries, 10).rows
    assert np.mean([np.isin(*rows) for rows in zip(exact, found, strict=True)]) > 0.98


@pytest.mark.parametrize("vectors", [np.zeros((500, 16), np.float32), np.repeat(random(1, 100), 500, axis=0)])
def test_equal_vectors_come_by_row(vectors: Vectors) -> None:
    found = search_of(vectors, 20).top_k(vectors[:2], 9)
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
    build(Source(source), folder / "index", GroupedVectors(), approximate=True, **options)
    return folder / "index"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index for approximate search."""
    return built(tmp_path_factory.mktemp("approximate"))


def answer(index: Index, query: Vectors, k: int = 10, **options: Any) -> SearchAnswer:
    """Return the answer to a search for one vector."""
    return index.answer(Job("search", ["storm"], k=k, search=SearchOptions(**options)), query[None])


def ids(found: SearchAnswer) -> list[str]:
    """Return the ids of the only list."""
    (hits,) = found.hits
    return [hit["id"] for hit in hits]


QUERIES = grouped(40, DIMENSION, 7)


class TestAnIndex:
    def test_its_files_have_checksums(self, folder: Path) -> None:
        manifest = Manifest.read(current_version(folder))
        assert BINARY in manifest.checksums
        assert LEAST_CANDIDATES <= manifest.num_candidates < manifest.count
        assert Index.open(folder).is_approximate

    def test_it_tells_that_hits_may_be_missing(self, folder: Path) -> None:
        index = Index.open(folder)
        found, exact = answer(index, QUERIES[0]), answer(index, QUERIES[0], exact=True)
        assert (found.approximate, exact.approximate) == (True, False)
        assert answer(index, QUERIES[0], exact=False).approximate
        assert ids(exact) == [str(row) for row in by_scoring_all(np.array(index.vectors), QUERIES[:1], 10).rows[0]]

    def test_most_hits_are_those_of_an_exact_search(self, folder: Path) -> None:
        index = Index.open(folder)
        exact = [ids(answer(index, query, exact=True)) for query in QUERIES]
        plain = [[hit["id"] for hit in hits] for hits in index.search(QUERIES, 10)]
        assert plain == [ids(answer(index, query)) for query in QUERIES]
        shared = sum(len({*one} & {*other}) for one, other in zip(plain, exact, strict=True))
        assert shared > 0.97 * 10 * len(QUERIES)

    def test_a_filter_that_leaves_few_is_exact(self, folder: Path) -> None:
        index = Index.open(folder)
        wanted = {"part": {"lt": 40}}
        assert not (found := answer(index, QUERIES[1], filter=wanted)).approximate
        assert found == answer(index, QUERIES[1], filter=wanted, exact=True)

    def test_a_filter_that_leaves_many_has_all_hits(self, folder: Path) -> None:
        index = Index.open(folder)
        found = answer(index, QUERIES[1], k=1_000, filter={"part": {"lt": 90}})
        assert found.approximate
        assert len(ids(found)) == 1_000
        assert all(hit["part"] < 90 for hit in found.hits[0])

    def test_words_orders_and_boosts_are_exact(self, folder: Path) -> None:
        index = Index.open(folder)
        for options in (
            {"mode": "hybrid"},
            {"mode": "lexical"},
            {"boost": [{"field": "part", "weight": 0.5}]},
            {"sort": [{"field": "part"}], "filter": {"part": {"lt": 40}}},
        ):
            assert not answer(index, QUERIES[2], **options).approximate, options

    def test_a_longer_list_begins_with_a_shorter_one(self, folder: Path) -> None:
        index = Index.open(folder)
        long = ids(answer(index, QUERIES[3], k=1_000))
        for k in (1, 10, 400):
            assert ids(answer(index, QUERIES[3], k=k)) == long[:k]

    def test_pages_are_the_list_in_parts(self, folder: Path) -> None:
        index = Index.open(folder)
        found, cursor = list[str](), ""
        for _ in range(5):
            page = answer(index, QUERIES[4], k=40, cursor=cursor)
            found += ids(page)
            (cursor,) = page.cursors or [""]  # type: ignore[assignment]
            assert page.totals == [COUNT]
        assert found == ids(answer(index, QUERIES[4], k=200))

    def test_groups_have_the_best_documents(self, folder: Path) -> None:
        index = Index.open(folder)
        found = answer(index, QUERIES[5], group_by="part", group_size=2)
        assert found.approximate
        parts = [hit["part"] for hit in found.hits[0]]
        assert len({*parts}) == 10
        assert max(map(parts.count, parts)) <= 2

    def test_documents_that_were_added_and_deleted_count_at_once(self, folder: Path) -> None:
        index = Index.open(folder)
        before = ids(answer(index, QUERIES[6]))
        change = Change((Document("new", "storm", {}),), QUERIES[6:7], (before[0],), "d", 0.0)
        index.live = index.live.after([change], "1-1", index.rows_of)
        after = ids(answer(index, QUERIES[6]))
        assert after[:9] == ["new", *before[1:9]]
        assert [hit["id"] for hit in index.search(QUERIES[6:7], 10)[0]] == after
        assert index.is_approximate


class TestBadInput:
    def test_an_index_for_exact_search_refuses_an_approximate_one(self, tmp_path: Path) -> None:
        index = Index.open(built(tmp_path, 200))
        with pytest.raises(InvalidRequest, match=r"exact is false, but version .* leave exact out, or build"):
            answer(index, QUERIES[0], exact=False)
        assert not answer(index, QUERIES[0], exact=True).approximate

    def test_few_documents_are_searched_exactly(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            index = Index.open(built(tmp_path, 200))
        assert (index.manifest.num_candidates, index.is_approximate) == (0, False)
        assert f"has 200 rows, fewer than {LEAST_ROWS:,}" in caplog.text
        assert not (index.folder / BINARY).exists()

    @pytest.mark.parametrize(
        "change", [lambda words: words[1:], lambda words: words[:, 1:].copy(), lambda words: words.astype(np.uint32)]
    )
    def test_bits_that_no_build_wrote_are_refused(self, tmp_path: Path, change: Any) -> None:
        words = binary(np.random.default_rng(0).integers(-127, 128, (300, 128)).astype(np.int8))
        save_array(tmp_path / BINARY, change(words))
        with pytest.raises(IndexCorrupt, match="build the index again"):
            BinaryCodes.open(tmp_path, 300, 128)

    @pytest.mark.parametrize("number", [-1, COUNT + 1, "1"])
    def test_a_manifest_that_contradicts_itself_is_refused(self, folder: Path, tmp_path: Path, number: Any) -> None:
        values = json.loads((current_version(folder) / MANIFEST).read_text())
        (tmp_path / MANIFEST).write_text(json.dumps(values | {"num_candidates": number}))
        with pytest.raises(IndexCorrupt, match="num_candidates"):
            Manifest.read(tmp_path)
