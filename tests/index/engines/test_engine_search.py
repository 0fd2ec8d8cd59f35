"""Versions are pushed into a vector engine, where searches find the same documents as in versions of files."""

import os
import random
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from blocking import ChangeLog, as_written
from changes import change, unit_vectors
from conftest import RedisServer, free_port, wait_until
from field_documents import FILTERS, KINDS, VALUES, matches, random_fields
from hypothesis import example, given
from index_versions import write_version
from numpy.typing import NDArray
from process import run
from queues import Queue
from redis import Redis, ResponseError
from service import Service, service
from vector_engines import ENGINES, PASSWORD, Engine

from shoal.contract.keys import Keys
from shoal.errors import IndexBusy, IndexCorrupt, IndexNotFound, InvalidRequest, ShoalError, Unavailable
from shoal.operations import Search
from shoal.operations.search_filter import parse_filter
from shoal.operations.search_options import SearchOptions
from shoal.records.document import Document
from shoal_workers.index import engine_index
from shoal_workers.index.build.engine_push import ROWS_AT_ONCE, push, remove_tables
from shoal_workers.index.build.merged_changes import IndexChanges
from shoal_workers.index.engine_index import EngineIndex, open_version
from shoal_workers.index.engines.engine import open_table
from shoal_workers.index.engines.fields import written
from shoal_workers.index.engines.redis import Table
from shoal_workers.index.files.manifest import Manifest
from shoal_workers.index.index import Index
from shoal_workers.index.versions import find_versions, make_current, remove_old

pytest_plugins = ["vector_engine_fixtures"]

DIMENSION, COUNT = 12, 1_200

Numbers = NDArray[np.float32]

#: Values of fields, some of them odd.
ODD = VALUES | {"tag": [*VALUES["tag"], 'q"\\\x00'], "year": [*VALUES["year"], 1e300, 1e-7, -0.0]}
ODD["day"] = [*VALUES["day"], 30_000_000_000]  # in the year 2920, in which float64 cannot hold every microsecond


def pushed_to(engine: Engine, folder: Path, documents: list[Document], vectors: Numbers) -> EngineIndex:
    """Return an index of these documents in an engine; the folder has the same index in files."""
    write_version(folder / "v1", documents, vectors, kinds=KINDS)
    make_current(folder, "v1")
    pushed = open_version(folder / push(folder, engine.url, PASSWORD, ignore), password=PASSWORD)
    assert isinstance(pushed, EngineIndex)
    hits_of(pushed, vectors[0])  # opens connections, which stay open
    return pushed


def hits_of(pushed: EngineIndex, query: Numbers, k: int = 10, **options: Any) -> list[dict[str, Any]]:
    """Return the hits of one query."""
    job = Search(["storm"], k=k, search=SearchOptions(**options))
    (hits,) = pushed.ask([job], [query[None]])[0].answer().hits
    return hits


class Scene(NamedTuple):
    """An index in an engine, the same index in files, and its documents. Some have lists of values, others none."""

    has_lists: bool
    pushed: EngineIndex
    files: Index
    documents: list[Document]
    vectors: Numbers


@pytest.fixture(scope="module", params=[False, True], ids=["single", "lists"])
def scene(engine: Engine, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder, draw = tmp_path_factory.mktemp("index") / f"news-{request.param}", random.Random(3)
    fields = [random_fields(draw, ODD) for _ in range(COUNT)]
    if not request.param:
        fields = [
            {name: (one[:1] or [None])[0] if isinstance(one, list) else one for name, one in own.items()}
            for own in fields
        ]
    documents = [Document(str(n), f"text {n}", own) for n, own in enumerate(fields)]
    vectors = unit_vectors(COUNT, DIMENSION, 1)
    return Scene(request.param, pushed_to(engine, folder, documents, vectors), Index.open(folder), documents, vectors)


def test_plain_searches_of_several_jobs_find_the_nearest_documents(scene: Scene) -> None:
    queries = unit_vectors(5, DIMENSION, 2)
    jobs = [Search(["storm"] * num, k=k) for num, k in ((1, 3), (3, 9), (1, 1))]
    searches = scene.pushed.ask(jobs, [queries[:1], queries[1:4], queries[4:]])
    expected = iter(scene.files.search(queries, 9))
    for job, search in zip(jobs, searches, strict=True):
        for hits in search.answer().hits:
            own = next(expected)[: job.k]
            assert [hit["id"] for hit in hits] == [hit["id"] for hit in own]
            assert [hit.pop("score") for hit in hits] == pytest.approx([hit.pop("score") for hit in own], abs=1e-5)
            assert hits == own


@example(wanted={"day": {"gt": "2001-06", "gte": "2001-05-03"}})
@example(wanted={"day": {"gt": "2001-05-03"}})  # a time within a day is not later than the day
@example(wanted={"year": {"gt": 1999, "lt": 2001}, "tag": {"in": ["b", "c"]}})
@example(wanted={"year": {"in": [1e300, 1e-7, 0]}})
@example(wanted={"year": {"gte": 0}})
@example(wanted={"day": {"in": [30_000_000_000]}})
@example(wanted={"not": {"year": {"gt": 1e-7}}})
@given(wanted=FILTERS)
def test_a_filter_leaves_the_documents_that_match(scene: Scene, engine: Engine, wanted: dict[str, Any]) -> None:
    query = scene.vectors[0]
    ids = [one.id for one in scene.documents if matches(wanted, one.fields)]
    try:
        found = hits_of(scene.pushed, query, 1_000, filter=wanted)
    except InvalidRequest as error:
        if not scene.has_lists or engine.name == "pgvector" or "is between two bounds" not in error.message:
            raise
        return
    assert len(found) == min(1_000, len(ids))
    assert {hit["id"] for hit in found} <= {*ids}
    best = sorted(ids, key=lambda one: -float(np.vecdot(scene.vectors[int(one)], query)))[:3]
    assert [hit["id"] for hit in found[:3]] == best


def test_the_few_documents_that_match_are_found_far_from_the_query(tmp_path: Path, engine: Engine) -> None:
    documents = [Document(str(n), "text", {"is": "rare" if n < 3 else "common"}) for n in range(COUNT)]
    vectors = unit_vectors(COUNT, DIMENSION, 1)
    vectors[:, 0] = np.where(np.arange(COUNT) < 3, -1, 1)
    pushed = pushed_to(engine, tmp_path / f"rare-{engine.name}", documents, vectors)
    query = np.eye(1, DIMENSION, dtype=np.float32)[0]
    if connection := getattr(pushed._table, "_connection", None):
        # A scan of the graph ends early, as in a large table.
        connection.execute("SET hnsw.max_scan_tuples = 100; SET enable_seqscan = off")
    if engine.name == "lancedb":
        divide(pushed._table, 64)
    assert {hit["id"] for hit in hits_of(pushed, query, 3, filter={"is": "rare"}, mode="dense")} == {"0", "1", "2"}


def divide(table: Any, num_partitions: int) -> None:
    """Build the graph of a table of LanceDB again, in partitions as of a table of many million rows."""
    from lancedb.index import IvfHnswSq

    graph = IvfHnswSq(distance_type="dot", num_partitions=num_partitions)
    table._run(lambda _: table._table.create_index("vector", config=graph))
    table._table = None


def test_a_reranker_orders_the_hits_of_the_first_stage(scene: Scene) -> None:
    query = scene.vectors[:1]
    job = Search(["storm"], k=2, search=SearchOptions(rerank={"top_n": 3}, fields=["text"]))
    (search,) = scene.pushed.ask([job], [query])
    first = [hit["id"] for hit in scene.files.search(query, 3)[0]]
    assert search.pairs() == [("storm", f"text {one}") for one in first]
    expected = [{"id": first[n], "score": score, "text": f"text {first[n]}"} for n, score in ((2, 9.0), (0, 2.0))]
    assert search.answer([2.0, 1.0, 9.0]).hits == [expected]


def test_a_condition_that_an_engine_cannot_check_is_refused(tmp_path: Path) -> None:
    documents = [Document("0", "text", {"year": [1, 2], "day": ["2001-05-03", "2002-01"], "size": 1})]
    write_version(tmp_path / "v1", documents, unit_vectors(1, seed=1))
    make_current(tmp_path, "v1")
    index = Index.open(tmp_path)
    fields, language = index.fields_at(index.live), Table.language
    for wanted in ({"year": {"gt": 1, "lt": 2}}, {"day": "2001-05"}, {"size": 1e-300}):
        with pytest.raises(InvalidRequest, match=r"have several values of|has too many digits"):
            written(parse_filter(wanted), fields, language)
    known: dict[str, Any] = {"year": {"gte": 1e16}, "size": {"lt": 1e-7}}
    expected = "(.f2 and .f2max >= 1e16) and (.f1 and .f1min < 0.0000001)"
    assert written(parse_filter(known), fields, language) == expected


# Pushes

NUM_PUSHED = 2 * ROWS_AT_ONCE + 1


def ignore(*_: object) -> None:
    pass


def publish(folder: Path, name: str, count: int = 1, **manifest: Any) -> None:
    """Publish a version of files."""
    documents = [Document(str(n), f"text {n}", {"n": n}) for n in range(count)]
    write_version(folder / name, documents, unit_vectors(count, seed=1), **manifest)
    make_current(folder, name)


def test_a_push_that_was_interrupted_goes_on_and_old_tables_are_removed(engine: Engine, tmp_path: Path) -> None:
    url, folder = engine.url, tmp_path / "interrupted"
    publish(folder, "v1", NUM_PUSHED)

    def interrupt(num: int, _: int) -> None:
        if num == ROWS_AT_ONCE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push(folder, url, PASSWORD, interrupt)
    reports: list[tuple[int, int]] = []
    version = push(folder, url, PASSWORD, lambda *report: reports.append(report))
    assert reports == [(2 * ROWS_AT_ONCE, NUM_PUSHED), (NUM_PUSHED, NUM_PUSHED)]
    make_current(folder, version)
    assert push(folder, url, PASSWORD, ignore) == version  # pushes the version in files again

    publish(folder, "v2", 3)
    newer = push(folder, url, PASSWORD, ignore)
    make_current(folder, newer)
    remove_old(folder, newer, 1)
    assert [one.name for one in find_versions(folder)] == [newer]
    assert remove_tables(folder, PASSWORD) == []
    assert open_table(Manifest.read(folder / newer).engine, PASSWORD).count() == 3
    assert open_table(f"{url}#{folder.name}-v1", PASSWORD).count() == 0
    assert (folder / ".tables").read_text().split() == [f"{url}#{folder.name}-v2"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://localhost", "is not an address of an engine: it must begin with postgresql://, redis://, "),
        ("postgresql://:secret@localhost", "has a password: set SHOAL_ENGINE_PASSWORD"),
        ("postgresql://localhost:99999999", "is not an address of an engine: Port out of range"),
        ("postgresql:folder", "it names no host"),
        ("lance://folder", "the path of a folder must begin with /"),
        ("redis://localhost/news", "the Redis URL cannot be read"),
        ("redis://:secret@localhost", "has a password"),
        ("postgresql://:secret@localhost:port", "has a password"),
        ("postgresql://localhost/db?password=secret", "has a password"),
        ("rediss://localhost?ssl_password=secret", "has a password"),
        ("redis://user:a#secret@localhost", "has a password"),
        ("postgresql://localhost/my db", "has white space"),
        ("postgresql://localhost/db#news", "after the # there must be"),
        ("postgresql://localhost/db?secrets=1", "cannot hold the index: invalid URI query parameter"),
    ],
)
def test_a_bad_address_is_refused_with_a_sentence(url: str, reason: str, tmp_path: Path) -> None:
    publish(tmp_path / "news", "v1")
    with pytest.raises((InvalidRequest, Unavailable), match=re.escape(reason)) as raised:
        push(tmp_path / "news", url, "", ignore)
    assert "secret@" not in raised.value.message
    assert "=secret" not in raised.value.message
    assert len(remove_tables(tmp_path / "news", "")) == ("secrets" in url)  # even such a table ends no push


@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_an_index_that_cannot_be_pushed_is_named(scheme: str, tmp_path: Path, queue: Queue) -> None:
    news, chunks, url = tmp_path / "news", tmp_path / "chunks", f"{scheme}://127.0.0.1:{free_port()}"
    publish(news, "v1")
    publish(chunks, "v1", chunk_tokens=8)
    refused: list[tuple[Path, type[ShoalError], str]] = [
        (chunks, InvalidRequest, "v1 has chunks, which no engine groups"),
        (tmp_path, IndexNotFound, "holds no index"),
        (news, Unavailable, f"{url}#news-v1 does not answer"),
    ]
    for folder, error, said in refused:
        with pytest.raises(error, match=said) as raised:
            push(folder, url, PASSWORD, ignore)
        assert PASSWORD not in raised.value.message
    assert [one.name for one in find_versions(news)] == ["v1"]
    change_log = ChangeLog(queue.broker, queue.keys)
    as_written(change_log).append("news", change([], ["0"]))
    with pytest.raises(InvalidRequest, match="v1 lacks later changes of documents"):
        push(news, url, "", ignore, IndexChanges(change_log, "news"))


def test_a_server_without_vector_sets_is_refused(tmp_path: Path, redis_server: RedisServer) -> None:
    publish(tmp_path / "news", "v1")
    with Redis.from_url(redis_server.plain_url) as connection, suppress(ResponseError):
        connection.execute_command("VCARD", "news")
        pytest.skip("this Redis has vector sets")
    with pytest.raises(InvalidRequest, match="this Redis has no vector sets: use Redis 8 or newer"):
        push(tmp_path / "news", redis_server.plain_url, "", ignore)


def test_a_second_push_at_the_same_time_is_refused(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / f"twice-{engine.name}"
    publish(folder, "v1")

    def push_again(*_: int) -> None:
        for again in (lambda: push(folder, engine.url, PASSWORD, ignore), lambda: remove_tables(folder, PASSWORD)):
            with pytest.raises(IndexBusy, match="has a push already"):
                again()

    assert open_version(folder / push(folder, engine.url, PASSWORD, push_again)).count == 1


def test_a_server_that_hangs_is_left_after_a_while(engine: Engine) -> None:
    table = open_table(f"{engine.url}#hangs", PASSWORD, timeout_s=1)
    assert table.count() == 0
    process = engine.process_of(table)
    os.kill(process, signal.SIGSTOP)
    try:
        with pytest.raises(table.outages, match=r"no answer after 2 s|Timeout reading|timed out"):
            table.count()
    finally:
        os.kill(process, signal.SIGCONT)
    assert open_table(f"{engine.url}#hangs", PASSWORD).count() == 0


def test_rows_that_an_engine_has_lost_are_noticed(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / f"lost-{engine.name}"
    publish(folder, "v1", 3)
    pushed = open_version(folder / push(folder, engine.url, PASSWORD, ignore), password=PASSWORD)
    assert isinstance(pushed, EngineIndex)
    losses: dict[int, Any] = {0: pushed._table.drop}
    if isinstance(table := pushed._table, Table):
        losses = {2: lambda: table._ask(("HDEL", table._documents, 0))} | losses
    for count, lose in losses.items():
        lose()
        (search,) = pushed.ask([Search(["storm"])], [unit_vectors(1)])
        with pytest.raises(IndexCorrupt, match=rf"has {count} of 3 rows of the index: push it again"):
            search.answer()


@pytest.mark.parametrize("name", ENGINES)
def test_after_an_outage_searches_fail_without_a_call_for_a_while(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_index, "RETRY_AFTER_S", 600)
    publish(tmp_path / "away", "v1")
    with ENGINES[name]() as engine:
        version = push(tmp_path / "away", engine.url, PASSWORD, ignore)
        pushed = open_version(tmp_path / "away" / version, password=PASSWORD)
        assert isinstance(pushed, EngineIndex)
        engine.stop()
        for num_calls in (1, 2):
            for search in [pushed.ask([Search(["storm"])], [unit_vectors(1)])[0] for _ in range(2)]:
                with pytest.raises(Unavailable, match=f"{name}, which has the index, does not answer"):
                    search.answer()
            assert caplog.text.count("does not answer") == num_calls
            pushed._fails_until = 0.0
        engine.start()


#: Searches that an engine refuses, each with the part of the message that names the option.
REFUSED: list[dict[str, Any]] = [
    {"mode": "lexical"},
    {"sort": [{"field": "n"}]},
    {"boost": [{"field": "n", "weight": 1}]},
    {"facets": ["n"]},
    {"group_by": "n"},
    {"snippet": {}},
    {"cursor": ""},
    {"explain": True},
    {"like": ["0"]},
    {"diversity": 0.5},
]


@pytest.mark.parametrize("name", ENGINES)
def test_an_index_in_an_engine_is_searched_like_any_other(
    name: str,
    home: Path,
    tiny_source: Path,
    redis_url: str,
    keys: Keys,
    index_folder: Path,
    tmp_path: Path,
) -> None:
    indexes = tmp_path / "indexes"
    for copy in ("files", "pushed"):
        shutil.copytree(index_folder, indexes / copy)
    settings: dict[str, Any] = {"redis_url": redis_url, "key_prefix": keys.prefix, "pool": keys.pool, "home": home}
    settings |= {"model": tiny_source, "precision": "f32", "threads": 1, "index_home": indexes}
    settings |= {"engine_password": PASSWORD}
    with ENGINES[name]() as engine, service(tmp_path, **settings) as pool:
        wait_until(pool.is_ready)
        body = {"queries": ["storm europe", "rain"], "k": 5}
        expected = pool.ask("POST", "/search", body | {"index": "files"}).body
        done = run("index", "push", "pushed", "--to", engine.url, **settings)
        assert done.returncode == 0, done.stderr
        scheme = engine.url.partition(":")[0]
        wait_until(lambda: scheme in [one["engine"] for one in pool.ask("GET", "/v1/indexes").body["indexes"]])
        found = pool.ask("POST", "/search", body | {"index": "pushed"}).body
        assert scores(found) == pytest.approx(scores(expected), abs=1e-5)
        check_options(pool, name)

        engine.stop()
        answer = pool.ask("POST", "/search", body | {"index": "pushed"})
        assert (answer.status, answer.body["error"]["code"]) == (503, "unavailable")
        assert f"{name}, which has the index, does not answer" in answer.body["error"]["message"]
        assert pool.ask("POST", "/search", body | {"index": "files"}).status == 200
        engine.start()
        engine.change_documents(f'"x":{2**64},')  # no reply can contain these documents, so only searches for them fail
        texts = {"queries": ["storm"], "index": "pushed", "fields": ["text"]}
        wait_until(lambda: pool.ask("POST", "/search", texts).status == 200)
        answer = pool.ask("POST", "/search", body | {"index": "pushed"})
        assert (answer.status, answer.body["error"]["code"]) == (500, "internal")
        assert pool.ask("POST", "/search", texts).status == 200


def scores(answer: dict[str, Any]) -> list[float]:
    return [hit["score"] for hits in answer["results"] for hit in hits]


def check_options(pool: Service, engine: str) -> None:
    """Compare the answers to searches with options, and to changes."""
    body = {"queries": ["storm"], "k": 2, "index": "pushed"}
    (hits,) = pool.ask("POST", "/search", body | {"fields": [], "min_score": -1, "negative": ["rain"]}).body["results"]
    assert [hit.keys() for hit in hits] == [{"id", "score"}] * 2
    for option in REFUSED:
        answer = pool.ask("POST", "/search", body | option)
        (name,) = option
        assert answer.status == 422, answer.body
        assert answer.body["error"]["message"].startswith(f"{name} does not work with this index, which is in {engine}")
    documents = {"documents": [{"id": "new", "text": "storm"}]}
    answer = pool.ask("POST", "/v1/indexes/pushed/documents", documents)
    assert (answer.status, "gets whole versions" in answer.body["error"]["message"]) == (422, True)
