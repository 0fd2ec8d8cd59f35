"""The map of an index: places of a sample of its documents, codes of a field, and places of hits and queries."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changes import change, unit_vectors
from index_versions import make_older, write_version
from numpy.typing import NDArray

from shoal import operations
from shoal.changes.change import Change
from shoal.contract.options import Options
from shoal.contract.replies import Reply
from shoal.errors import IndexCorrupt, IndexMismatch, InvalidRequest, MalformedJob
from shoal.operations import Map, Search
from shoal.operations.map import TEXTS_PER_MAP
from shoal.operations.map_options import MAX_POINTS, MAX_ROWS, MapOptions
from shoal.operations.search_options import SearchOptions
from shoal.records.document import Document
from shoal_workers.index.files.array_file import save_array
from shoal_workers.index.files.manifest import MAP_AXES
from shoal_workers.index.index import Index
from shoal_workers.index.map.field_codes import HIGHEST, MAX_VALUES, NO_VALUE
from shoal_workers.index.map.map_axes import MapAxes

TOPICS = ["news", "sport", "news", None, ["zoo", "art"]]

DIMENSION = 8


def fields_of(n: int) -> dict[str, Any]:
    """Return the fields of a document, without those that have no value."""
    fields = {"topic": TOPICS[n % 5], "year": 2000 + n if n % 4 else None, "day": f"2020-01-{n % 28 + 1:02}"}
    return {name: value for name, value in fields.items() if value is not None} | {"word": f"w{n}", "note": {"a": n}}


def made(folder: Path, count: int) -> Index:
    """Return an index of documents with these fields."""
    documents = [Document(f"d{n}", f"text {n}", fields_of(n)) for n in range(count)]
    write_version(folder, documents, unit_vectors(count, DIMENSION))
    return Index.open_version(folder)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """An index that no test changes."""
    return made(tmp_path_factory.mktemp("index") / "v1", 50)


def made_older(folder: Path) -> Index:
    """Return an index that has no map."""
    write_version(folder, [Document("d", "text", {})], unit_vectors(1, DIMENSION))
    make_older(folder, 5)
    return Index.open_version(folder)


def array(packed: dict[str, Any]) -> NDArray[Any]:
    """Return an array of an answer, read as docs/protocol.md says."""
    return np.frombuffer(packed["data"], np.dtype(packed["dtype"]).newbyteorder("<")).reshape(packed["shape"])


def points(index: Index, **options: Any) -> dict[str, Any]:
    """Return the points of the map with their arrays."""
    answer = index.answer_map(Map(map=MapOptions(**options)))
    assert (answer.hits, answer.approximate) == ([], False)
    assert answer.map is not None
    reply = Reply.unpack(Reply("m", hits=[], map=answer.map).pack())  # so what is told can be packed
    assert reply.map is not None
    return {name: array(value) if name in ("rows", "places") else value for name, value in reply.map.items()}


def documents_at(index: Index, *rows: int, index_version: str = "v1") -> list[dict[str, Any]]:
    """Return the documents at rows of the map."""
    options = MapOptions(map_rows=list(rows), index_version=index_version)
    return index.answer_map(Map(map=options)).hits[0]


class TestPoints:
    def test_all_documents_have_one(self, index: Index) -> None:
        found = points(index)
        assert found["rows"].tolist() == list(range(50))
        assert found["places"].shape == (50, 2)
        assert found["field"] is None
        centred = found["places"] / found["places_per_unit"]
        np.testing.assert_allclose(centred.mean(axis=0), 0, atol=1e-4)

    @pytest.mark.parametrize("max_points", [1, 7, 49, 50, 51])
    def test_of_many_there_is_a_sample_that_is_always_the_same(self, index: Index, max_points: int) -> None:
        found, again = points(index, max_points=max_points), points(index, max_points=max_points)
        assert found["rows"].tolist() == again["rows"].tolist()
        assert len(set(found["rows"].tolist())) == min(max_points, 50)
        assert np.ptp(np.diff(found["rows"])) <= 1 if max_points > 1 else True
        np.testing.assert_array_equal(found["places"], points(index)["places"][found["rows"]])

    def test_changes_since_the_build_are_on_it_by_the_same_axes(self, tmp_path: Path) -> None:
        index = made(tmp_path / "v1", 50)
        before = points(index)
        same = Document("new", "as text 7", {"topic": "sport"})
        added = Change((same,), unit_vectors(50, DIMENSION)[7:8], ("d3", "d4"), "d", 0.0)
        index.live = index.live.after([added], "1-1", index.rows_of)
        found = points(index, field="topic")
        assert found["rows"].tolist() == [row for row in range(51) if row not in (3, 4)]
        np.testing.assert_array_equal(found["places"][-1], before["places"][7])
        assert array(found["field"]["codes"])[-1] == 1
        assert [document["id"] for document in documents_at(index, 50, 3, 7)] == ["new", "d7"]

    def test_none_is_left_if_all_are_deleted(self, tmp_path: Path) -> None:
        index = made(tmp_path / "v1", 50)
        gone = change(deleted=[f"d{n}" for n in range(50)])
        index.live = index.live.after([gone], "1-1", index.rows_of)
        found = points(index, field="year")
        assert (found["rows"].shape, found["places"].shape) == ((0,), (0, 2))
        assert (found["field"]["low"], found["field"]["high"], found["field"]["num_without"]) == (None, None, 0)
        assert points(index, field="topic")["field"]["values"] == []


class TestAField:
    def test_keywords_have_a_code_each_the_most_frequent_first(self, index: Index) -> None:
        field = points(index, field="topic")["field"]
        assert [(each["value"], each["count"]) for each in field["values"]] == [
            ("news", 20),
            ("art", 10),
            ("sport", 10),
        ]
        assert (field["name"], field["kind"], field["num_without"], field["num_others"]) == ("topic", "keyword", 10, 0)
        assert array(field["codes"])[:5].tolist() == [0, 2, 0, NO_VALUE, 1]

    def test_of_many_values_the_rest_share_a_code(self, index: Index) -> None:
        field = points(index, field="word")["field"]
        assert len(field["values"]) == MAX_VALUES
        codes = array(field["codes"])
        assert (codes == MAX_VALUES).sum() == field["num_others"] == 50 - MAX_VALUES

    @pytest.mark.parametrize(("name", "kind", "low"), [("year", "number", 2002), ("day", "date", "2020-01-01")])
    def test_numbers_and_dates_are_on_a_scale(self, index: Index, name: str, kind: str, low: str | int) -> None:
        field = points(index, field=name)["field"]
        codes = array(field["codes"])
        assert (field["kind"], field["low"]) == (kind, low)
        assert (codes.min(), codes[codes != NO_VALUE].max()) == (0, HIGHEST)
        order = [codes[n] for n in range(28) if codes[n] != NO_VALUE]
        assert order == sorted(order)
        assert (codes == NO_VALUE).sum() == field["num_without"] == (13 if name == "year" else 0)

    def test_a_few_far_values_leave_the_others_their_colours(self, tmp_path: Path) -> None:
        numbers = [*range(100), 10**18, -1.7e308]
        documents = [Document(str(n), "text", {"n": value}) for n, value in enumerate(numbers)]
        write_version(tmp_path / "v1", documents, unit_vectors(len(documents), DIMENSION))
        field = points(Index.open_version(tmp_path / "v1"), field="n")["field"]
        assert -1 <= field["low"] < 5
        assert 95 < field["high"] <= 100
        assert len(set(array(field["codes"]).tolist())) > 80

    @pytest.mark.parametrize("sign", [1, -1])
    def test_skewed_numbers_have_codes_by_rank(self, tmp_path: Path, sign: int) -> None:
        documents = [Document(str(n), "text", {"n": sign * 2**n // 4}) for n in range(40)]
        write_version(tmp_path / "v1", documents, unit_vectors(len(documents), DIMENSION))
        field = points(Index.open_version(tmp_path / "v1"), field="n")["field"]
        codes = array(field["codes"])[::sign].tolist()
        ends = (field["low"], field["high"])
        assert ends == ((0, 2**37) if sign == 1 else (-(2**37), -1))
        assert codes == sorted(codes)
        assert (codes[0], codes[-1], len(set(codes))) == (0, HIGHEST, 39 if sign == 1 else 38)
        assert abs(field["middle"]) in (2**17, 2**18)

    def test_what_is_not_skewed_has_codes_by_value(self, index: Index) -> None:
        assert "middle" not in points(index, field="year")["field"]

    def test_most_values_may_be_equal(self, tmp_path: Path) -> None:
        documents = [Document(str(n), "text", {"n": value}) for n, value in enumerate([0] * 100 + [-5, 7, 9])]
        write_version(tmp_path / "v1", documents, unit_vectors(len(documents), DIMENSION))
        codes = array(points(Index.open_version(tmp_path / "v1"), field="n")["field"]["codes"])
        assert codes[-4:].tolist() == [127, 0, HIGHEST, HIGHEST]

    @pytest.mark.parametrize("values", [[5, 5], [1.7e308, -1.7e308], [0.1]])
    def test_few_or_extreme_numbers_have_codes(self, tmp_path: Path, values: list[float]) -> None:
        documents = [Document(str(n), "text", {"n": value}) for n, value in enumerate(values)]
        write_version(tmp_path / "v1", documents, unit_vectors(len(documents), DIMENSION))
        codes = array(points(Index.open_version(tmp_path / "v1"), field="n")["field"]["codes"])
        assert len(set(codes.tolist())) == len(set(values))

    @pytest.mark.parametrize(("name", "reason"), [("topics", "no field"), ("note", "long texts"), ("text", "no field")])
    def test_one_without_values_is_refused(self, index: Index, name: str, reason: str) -> None:
        with pytest.raises(InvalidRequest, match=reason):
            points(index, field=name)


class TestDocuments:
    def test_they_are_told_by_their_rows(self, index: Index) -> None:
        found = documents_at(index, 7, 0)
        assert [document["id"] for document in found] == ["d7", "d0"]
        assert found[0]["map_row"] == 7
        assert found[0]["word"] == "w7"

    def test_a_row_that_the_map_has_not_is_refused(self, index: Index) -> None:
        with pytest.raises(InvalidRequest, match=r"map_rows\[1\] is 50: the map has rows from 0 to 49"):
            documents_at(index, 0, 50)

    def test_a_row_is_that_of_one_document_while_others_are_added_and_deleted(self, tmp_path: Path) -> None:
        index = made(tmp_path / "v1", 50)
        index.live = index.live.after([change(["a", "b", "c", "d7"])], "1-1", index.rows_of)
        assert points(index)["rows"].tolist() == [*range(7), *range(8, 54)]
        places = points(index)["places"]
        index.live = index.live.after([change(["b"], ["a", "d8"], seed=1)], "1-2", index.rows_of)
        found = points(index)
        assert found["rows"].tolist() == [*range(7), *range(9, 50), 52, 53, 54]
        np.testing.assert_array_equal(found["places"][-3:-1], places[-2:])
        documents = documents_at(index, 54, 50, 51, 52, 53, 7, 8, 9)
        assert [(each["id"], each["map_row"]) for each in documents] == [("b", 54), ("c", 52), ("d7", 53), ("d9", 9)]
        with pytest.raises(InvalidRequest, match="from 0 to 54"):
            documents_at(index, 55)

    def test_rows_of_another_version_are_refused(self, index: Index) -> None:
        with pytest.raises(InvalidRequest, match="ask for the map again"):
            documents_at(index, 0, index_version="v0")


class TestASearch:
    def test_hits_and_queries_have_their_places(self, index: Index) -> None:
        vectors, places = unit_vectors(50, DIMENSION), points(index)
        job = Search(["a", "b"], k=3, search=SearchOptions(map_place=True))
        answer = index.answer(job, vectors[[4, 9]])
        in_units = places["places"] / places["places_per_unit"]
        for hits, row, place in zip(answer.hits, (4, 9), answer.map_places or (), strict=True):
            assert hits[0]["id"] == f"d{row}"
            np.testing.assert_allclose(hits[0]["map_place"], in_units[row], atol=1e-5)
            np.testing.assert_allclose(place, in_units[row], atol=1e-4)

    def test_without_being_asked_nothing_is_told_of_places(self, index: Index) -> None:
        answer = index.answer(Search(["a"]), unit_vectors(1, DIMENSION))
        assert answer.map_places is None
        assert "map_place" not in answer.hits[0][0]


class TestAnOlderVersion:
    def test_it_says_that_it_has_no_map(self, tmp_path: Path) -> None:
        older = made_older(tmp_path / "v1")
        for ask in (lambda: points(older), lambda: documents_at(older, 0)):
            with pytest.raises(IndexMismatch, match=r"version v1 .* build the index again"):
                ask()
        with pytest.raises(IndexMismatch, match="build the index again"):
            older.answer(Search(["a"], search=SearchOptions(map_place=True)), unit_vectors(1, DIMENSION))

    def test_it_is_searched_as_before(self, tmp_path: Path) -> None:
        older = made_older(tmp_path / "v1")
        answer = older.answer(Search(["a"], search=SearchOptions(mode="hybrid")), unit_vectors(1, DIMENSION))
        assert len(answer.hits[0]) == 1


class TestTheJob:
    @pytest.mark.parametrize(
        ("values", "reason"),
        [
            ({"max_points": 0}, f"max_points is 0: it takes a whole number from 1 to {MAX_POINTS:,}"),
            ({"max_points": MAX_POINTS + 1}, "max_points"),
            ({"max_points": True}, "max_points"),
            ({"field": 5}, "field is 5: it takes a name"),
            ({"map_rows": [1]}, "go together"),
            ({"index_version": "v1"}, "go together"),
            ({"map_rows": [], "index_version": "v1"}, f"a list of 1 to {MAX_ROWS} rows"),
            ({"map_rows": [0] * (MAX_ROWS + 1), "index_version": "v1"}, "map_rows"),
            ({"map_rows": [0, -1], "index_version": "v1"}, r"map_rows\[1\] is -1"),
            ({"map_rows": ["0"], "index_version": "v1"}, r"map_rows\[0\]"),
            ({"map_rows": [2**32], "index_version": "v1"}, r"map_rows\[0\]"),
        ],
    )
    def test_a_value_that_an_option_does_not_take_is_refused(self, values: dict[str, Any], reason: str) -> None:
        with pytest.raises(InvalidRequest, match=reason):
            MapOptions(**values)

    @pytest.mark.parametrize(
        "job",
        [
            {"texts": ["storm"]},
            {"options": Options(truncate=False)},
            {"index": 5},
        ],
    )
    def test_what_does_not_go_with_it_is_refused(self, job: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequest, match=r"go with|takes"):
            Map(**job)

    def test_it_reads_back_the_same(self) -> None:
        for options in (MapOptions(), MapOptions(5, "topic"), MapOptions(map_rows=[1, 2], index_version="v1")):
            job = Map(index="news", map=options)
            assert operations.unpack(job.pack()) == job
            assert job.num_lane_texts == (
                1 if options.map_rows else TEXTS_PER_MAP
            )  # so that clients who ask for many do not hold up others
            assert job.split(32) == [job]

    def test_a_reply_whose_places_are_none_is_refused(self) -> None:
        for damaged in ({"map": [1]}, {"map_places": [1]}):
            with pytest.raises(MalformedJob):
                Reply.from_map({"id": "x"} | damaged)


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_axes_that_are_no_directions_are_refused(tmp_path: Path, value: float) -> None:
    folder = made(tmp_path / "v1", 5).folder
    save_array(folder / MAP_AXES, np.full((3, DIMENSION), value, np.float32))
    with pytest.raises(IndexCorrupt, match=r"map-axes.npy holds no directions .* build the index again"):
        MapAxes.open(folder, DIMENSION)


def test_the_manifest_lists_the_files_with_their_checksums(index: Index) -> None:
    sums = json.loads((index.folder / "manifest.json").read_text())["checksums"]
    assert {"map-places.npy", "map-axes.npy"} <= sums.keys()
