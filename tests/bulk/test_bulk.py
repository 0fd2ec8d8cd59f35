"""Bulk embedding: a file becomes a folder of vectors, which is the same after every interruption."""

import hashlib
import json
import shutil
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import RedisServer, running, wait_until
from numpy.typing import NDArray
from process import Process, run_on_small_disk
from queues import Queue, set_limits
from safetensors.numpy import load_file
from steady_worker import BROKEN, DIMENSION, FINGERPRINT, MODEL, TOO_LONG, SteadyWorker, steady_reply, vectors_of

from shoal import Client
from shoal.bulk import job_stream
from shoal.bulk.embed_file import BulkRequest, BulkResult, embed_file
from shoal.bulk.job_stream import MAX_GROUP_ROWS, MAX_WINDOW_ROWS, Group, JobStream, Row, groups
from shoal.bulk.part_file import SUFFIXES
from shoal.bulk.served_model import ModelInfo, check_same_vectors, served_model
from shoal.bulk.vector_folder import VectorFolder, VectorManifest
from shoal.contract.keys import Keys
from shoal.contract.options import Options
from shoal.errors import (
    BadDocument,
    FileError,
    FolderBusy,
    Internal,
    InvalidRequest,
    MalformedJob,
    ModelMismatch,
    NotReady,
    Unavailable,
)
from shoal.operations import Embed
from shoal.queue import dispatcher
from shoal.queue.consumer import Answer
from shoal.queue.lane import LaneLimits
from shoal.records.document import BadRow, Document
from shoal.settings import DEFAULTS, Settings
from shoal.task_progress import Report, TaskProgress
from shoal_workers.loop.worker import Worker
from shoal_workers.service.service import announced

pytest_plugins = ["cli_fixtures"]

NUM_ROWS, PART_ROWS = 100, 16

#: The contents of files by their names.
Files = dict[str, bytes]

#: The heartbeat of a worker with another model.
OTHER_MODEL = {"model": "other", "digest": "d2", "dimension": DIMENSION, "fingerprint": "f2"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of rows with ids. Three rows are bad, and the text of one is too long for the worker."""
    lines = [{"id": f"ü{n}", "text": f"storm {n}"} for n in range(NUM_ROWS)]
    lines[3]["text"] = lines[40]["text"] = " "
    lines[50] = {"id": "ü50"}
    lines[20]["text"] = TOO_LONG
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


GOOD = [n for n in range(NUM_ROWS) if n not in (3, 20, 40, 50)]

GOOD_VECTORS = vectors_of([f"storm {n}" for n in GOOD])


@pytest.fixture
def steady(queue: Queue) -> Iterator[SteadyWorker]:
    """A running worker in the test's own pool."""
    with SteadyWorker(queue).running() as worker:
        yield worker


def ignore(progress: TaskProgress) -> None:
    """Ignore a report."""


#: A function that embeds the source in small parts into a folder beside it. Its arguments are the name of the folder, a
#: report, settings, and fields of the request.
EmbedSource = Callable[..., BulkResult]


@pytest.fixture
def embed(source: Path, tmp_path: Path, client: Client) -> EmbedSource:
    def embed_source(
        out: str = "out", report: Report = ignore, settings: Settings = DEFAULTS, **arguments: Any
    ) -> BulkResult:
        defaults: dict[str, Any] = {"source": str(source), "out": str(tmp_path / out), "part_rows": PART_ROWS}
        return embed_file(BulkRequest(**defaults | arguments), client, report, settings)

    return embed_source


def files_in(folder: Path) -> Files:
    """Return the contents of a folder's files by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def read(folder: Path, format_name: str = "safetensors") -> tuple[list[str], NDArray[np.float32]]:
    """Return the ids and vectors in all parts of a folder."""
    ids, vectors = list[str](), list[Any]()
    for part in sorted(folder.glob(f"part-*{SUFFIXES[format_name][0]}")):
        if format_name in ("parquet", "jsonl"):
            is_parquet = format_name == "parquet"
            pq = pytest.importorskip("pyarrow.parquet") if is_parquet else None
            rows = pq.read_table(part).to_pylist() if pq else map(json.loads, part.read_text().splitlines())
            found_ids, found = zip(*((row["id"], row["vector"]) for row in rows), strict=True)
            vectors.append(np.array(found, np.float32))
        else:
            found_ids = tuple(map(json.loads, part.with_suffix(".ids.jsonl").read_text().splitlines()))
            # The length of the header of safetensors, which begins the file, keeps the numbers aligned.
            assert format_name == "npy" or part.read_bytes()[0] % 8 == 0
            vectors.append(np.load(part) if format_name == "npy" else load_file(part)["vectors"])
        ids += found_ids
    return ids, np.concatenate(vectors)


@pytest.mark.usefixtures("steady")
class TestFolder:
    def test_every_format_has_the_good_rows(self, embed: EmbedSource, tmp_path: Path) -> None:
        for format_name in SUFFIXES:
            result = embed(format_name, format=format_name)
            ids, vectors = read(tmp_path / format_name, format_name)
            assert ids == [f"ü{n}" for n in GOOD]
            assert vectors.dtype == np.float32
            assert np.array_equal(vectors, GOOD_VECTORS)
            assert (result.rows, result.num_vectors, result.num_bad, result.num_parts) == (NUM_ROWS, 96, 4, 7)

    def test_bad_rows_parts_and_progress_are_reported(self, embed: EmbedSource, tmp_path: Path) -> None:
        out, reports = tmp_path / "out", list[TaskProgress]()
        result = embed(report=reports.append)
        rows = [json.loads(line) for line in (out / "bad-rows.jsonl").read_text().splitlines()]
        assert [row["row"] for row in rows] == [4, 21, 41, 51]
        assert "line 21" in rows[1]["reason"]
        assert "too many tokens" in rows[1]["reason"]
        assert result.first_bad == [row["reason"] for row in rows]
        assert (result.model, result.dimension) == (MODEL, DIMENSION)
        manifest, files = json.loads((out / "manifest.json").read_text()), files_in(out)
        assert manifest["is_complete"]
        assert [part["first_row"] for part in manifest["parts"]] == list(range(0, NUM_ROWS, PART_ROWS))
        assert [part["num_bad"] for part in manifest["parts"]] == [1, 1, 1, 1, 0, 0, 0]
        checksums = {name: digest for part in manifest["parts"] for name, digest in part["checksums"].items()}
        assert checksums == {name: hashlib.sha256(files[name]).hexdigest() for name in checksums}
        assert files.keys() == checksums.keys() | {"manifest.json", "bad-rows.jsonl"}
        assert [report.rows for report in reports] == sorted(report.rows for report in reports)
        assert reports[-1] == TaskProgress(NUM_ROWS, 4, tuple(result.first_bad), 1.0, "done")
        fractions = [report.fraction or 0.0 for report in reports]
        assert fractions == sorted(fractions)
        assert all(report.fraction == pytest.approx(report.rows / NUM_ROWS) for report in reports[-8:])

    def test_too_long_texts_are_named_and_without_a_good_row_it_fails(self, embed: EmbedSource, tmp_path: Path) -> None:
        result = embed(settings=Settings(max_text_chars=7))
        assert result.num_vectors == 9
        assert "7 (SHOAL_MAX_TEXT_CHARS)" in result.first_bad[-1]
        (tmp_path / "docs").mkdir()
        for name, text in (("docs/a.txt", "storm"), ("docs/b.txt", TOO_LONG), ("bad.txt", f"{TOO_LONG}\n" * 3)):
            (tmp_path / name).write_text(text)
        (reason,) = embed("docs-out", source=str(tmp_path / "docs")).first_bad
        assert reason.startswith(f"{tmp_path}/docs/b.txt: ")
        with pytest.raises(BadDocument, match=r"none of the 3 rows can be embedded; the first: .*too many tokens"):
            embed("bad", source=str(tmp_path / "bad.txt"))
        (tmp_path / "bad.txt").write_text("\n")
        result = embed("none", source=str(tmp_path / "bad.txt"))
        assert (result.rows, result.num_parts) == (0, 0)
        assert files_in(tmp_path / "none").keys() == {"manifest.json", "bad-rows.jsonl"}


@pytest.fixture
def undisturbed(embed: EmbedSource, tmp_path: Path, steady: SteadyWorker) -> Files:
    """The files after a run without interruption."""
    embed("undisturbed")
    return files_in(tmp_path / "undisturbed")


class TestContinuing:
    def test_after_a_kill_at_any_moment(self, embed: EmbedSource, tmp_path: Path, undisturbed: Files) -> None:
        out, states = tmp_path / "out", []

        def snapshot(progress: TaskProgress) -> None:
            states.append(files_in(out))

        embed(report=snapshot)
        ended = files_in(out)
        for state in states[1:]:
            for left in (state, {**ended, **state}, {**ended, "manifest.json": state["manifest.json"]}):
                shutil.rmtree(out)
                out.mkdir()
                for name, data in left.items():
                    (out / name).write_bytes(data)
                embed()
                assert files_in(out) == undisturbed

    def test_with_the_same_model_even_under_another_name(
        self, embed: EmbedSource, tmp_path: Path, undisturbed: Files, steady: SteadyWorker
    ) -> None:
        out = tmp_path / "undisturbed"
        (out / "part-00004.ids.jsonl").unlink()
        left = files_in(out)
        for other in ({"digest": "d2", "model": "other"}, {"fingerprint": "f2"}, {"model": "renamed"}):
            usual, steady.about = steady.about, steady.about | other
            steady.announce()
            is_same = other == {"model": "renamed"}
            message = r"begun with the model steady \(d1\), and the workers have .*, or another engine"
            with nullcontext() if is_same else pytest.raises(ModelMismatch, match=message):
                embed("undisturbed")
            assert files_in(out) == (undisturbed if is_same else left)
            steady.about = usual

    def test_only_a_lost_part_is_made_again_and_parts_keep_their_number_of_rows(
        self, embed: EmbedSource, tmp_path: Path, undisturbed: Files, steady: SteadyWorker
    ) -> None:
        out, before = tmp_path / "undisturbed", steady.num_answered
        result = embed("undisturbed")
        assert (result.num_vectors, len(result.first_bad), steady.num_answered) == (96, 4, before)
        assert files_in(out) == undisturbed
        (out / "part-00002.safetensors").write_bytes(b"cut")
        (out / "part-00004.ids.jsonl").unlink()
        assert embed("undisturbed", part_rows=None).num_parts == 7
        assert files_in(out) == undisturbed
        embed(part_rows=None)  # in a new folder, a part is less than a minute of work
        assert VectorManifest.read(tmp_path / "out").part_rows == 8_192

    def test_a_process_that_is_stopped_within_a_part_goes_on(
        self, source: Path, tmp_path: Path, queue: Queue, pool_settings: dict[str, str]
    ) -> None:
        out = tmp_path / "out"
        words = ("embed", "--file", source, "--out", f"{out}/", "--part-rows", PART_ROWS)
        worker = SteadyWorker(queue, max_jobs=3)
        with worker.running(), Process(tmp_path / "log", *words, **pool_settings) as first:
            wait_until(lambda: (out / "manifest.json").exists() and _num_parts(out) >= 1)
            first.send(signal.SIGINT)
            assert first.wait() != 0
            worker.max_jobs = 2**31
            with Process(tmp_path / "log", *words, **pool_settings) as second:
                assert second.wait() == 0, second.output
        assert "96 vectors in 7 parts" in second.output
        assert "the same command goes on" in second.output
        assert np.array_equal(read(out)[1], GOOD_VECTORS)


def _num_parts(out: Path) -> int:
    return len(json.loads((out / "manifest.json").read_text())["parts"])


class TestRefused:
    def test_other_arguments(self, embed: EmbedSource, source: Path, tmp_path: Path, undisturbed: Files) -> None:
        for change, message in (
            ({"format": "npy"}, 'begun with format "safetensors", and not "npy"'),
            ({"part_rows": 32}, "begun with part_rows 16, and not 32"),
            ({"id_column": "text"}, "begun with id_column"),
            ({"options": {"dimensions": 4}}, r'options {"dimensions": null}, and not {"dimensions": 4}'),
        ):
            with pytest.raises(InvalidRequest, match=message):
                embed("undisturbed", **change)
        with source.open("a") as file:
            file.write('{"id": "new", "text": "new"}\n')
        with pytest.raises(InvalidRequest, match=r'begun with source \{"modified": .*, and not \{"modified"'):
            embed("undisturbed")
        source.rename(other := source.with_name("other.jsonl"))
        with pytest.raises(InvalidRequest, match=r'"name": "rows.jsonl".*"name": "other.jsonl"'):
            embed("undisturbed", source=str(other))
        assert files_in(tmp_path / "undisturbed") == undisturbed

    def test_a_source_or_a_model_that_changes_during_a_run(
        self, embed: EmbedSource, source: Path, tmp_path: Path, client: Client, undisturbed: Files
    ) -> None:
        def join(progress: TaskProgress) -> None:
            if progress.rows > PART_ROWS:
                client.pool.announce("other", OTHER_MODEL)

        with pytest.raises(NotReady, match=r"different models, other \(d2\), steady \(d1\)"):
            embed(report=join)
        client.pool.leave("other")
        embed()
        assert files_in(tmp_path / "out") == undisturbed
        with pytest.raises(InvalidRequest, match="begun with source"):
            embed("new", report=lambda progress: source.touch() if progress.rows == 2 * PART_ROWS else None)
        assert _num_parts(tmp_path / "new") < 3

    def test_the_reason_why_vectors_of_workers_differ_is_named(self) -> None:
        about = {"digest": "d", "precision": "f32", "engine": "openvino", "max_tokens": 256, "prompts": ["query"]}
        others: list[tuple[dict[str, Any], str]] = [
            ({"precision": "bf16", "max_tokens": 128}, r'precision \("bf16" and "f32"\), max_tokens \(128 and 256\)'),
            ({}, "different files of the model: prepare the model anew"),
            ({"fingerprint": None}, "update all workers"),
        ]
        for other, words in others:
            with pytest.raises(NotReady, match=words):
                check_same_vectors([about | {"fingerprint": "f1"}, about | {"fingerprint": "f2"} | other])
        about = {"model": "m", "digest": "d", "dimension": 8, "pooling": "mean", "fingerprint": "f"}
        assert served_model([{"state": "ready"}, about | {"dimension": "8"}]) is None
        found = served_model([{"model": 5}, about | {"prompts": ["query", "document"]}])
        assert found == ModelInfo("m", "d", "mean", 8, "document", "f")
        assert served_model([about | {"prompts": 5}]) == ModelInfo("m", "d", "mean", 8, "", "f")

    def test_a_folder_of_another_run_or_with_other_files(
        self, embed: EmbedSource, steady: SteadyWorker, tmp_path: Path
    ) -> None:
        def run_again(progress: TaskProgress) -> None:
            with pytest.raises(FolderBusy, match="another process writes into"):
                embed()

        assert embed(report=run_again).num_vectors == 96
        with pytest.raises(InvalidRequest, match=r"holds other files, such as .*, and no manifest.json"):
            embed(".")
        with pytest.raises(MalformedJob, match="vectors of dimension 8, not 4"):
            embed("other", options={"dimensions": 4})
        assert embed("other").num_vectors == 96  # the refused options have not taken the folder
        for damage in ("", "[]", '{"layout": 2}', '{"layout": 1, "parts": [3]}', '{"layout": 1, "parts": []}'):
            (tmp_path / "out" / "manifest.json").write_text(damage)
            with pytest.raises(FileError, match=r"manifest.json cannot be read"):
                embed()
        values = json.loads((tmp_path / "other" / "manifest.json").read_text())
        for wrong, words in (
            ({"options": []}, r"begun with options \[\], and not"),
            ({"digest": 5}, r"model steady \(5\)"),
        ):
            (tmp_path / "other" / "manifest.json").write_text(json.dumps(values | wrong))
            with pytest.raises((InvalidRequest, ModelMismatch), match=words):
                embed("other")

    def test_arguments_that_cannot_work(self) -> None:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"source": ""}, 'source is "": it takes the name'),
            ({"text_column": 3}, "text_column is 3: it takes the name of a column"),
            ({"format": "csv"}, 'format is "csv": it takes one of safetensors, npy, parquet, jsonl'),
            ({"format": ["npy"]}, r'format is \["npy"\]: it takes one of'),
            ({"part_rows": 0}, "part_rows is 0: it takes a whole number"),
            ({"part_rows": 131_073}, "from 1 to 131,072"),
            ({"part_rows": True}, "part_rows is true"),
            ({"options": ["dimensions"]}, "options is .*: it takes a map"),
            ({"options": {"size": 3}}, 'unknown option "size"'),
            ({"options": {"dimensions": "3"}}, "dimensions is"),
            ({"options": {"output": "tokens"}}, 'output is "tokens": a file of vectors takes'),
        ]
        for arguments, message in wrong:
            with pytest.raises(InvalidRequest, match=message):
                BulkRequest(**{"source": "a.txt", "out": "out", **arguments})


@pytest.mark.parametrize("format_name", ["safetensors", "npy"])
def test_on_a_full_disk_finished_parts_stay(
    embed: EmbedSource,
    source: Path,
    tmp_path: Path,
    pool_settings: dict[str, str],
    steady: SteadyWorker,
    format_name: str,
) -> None:
    def run(out: Path, max_file_bytes: int, *words: Any) -> None:
        command = ("embed", "--file", source, "--out", out, "--format", format_name, *words)
        done = run_on_small_disk(max_file_bytes, *command, **pool_settings)
        assert "no room to write the output" in done.stderr
        assert "[disk_full]" in done.stderr

    out = tmp_path / "out"
    run(out, 1_800, "--part-rows", PART_ROWS)
    assert 0 < _num_parts(out) < 7
    embed(format=format_name)
    assert np.array_equal(read(out, format_name)[1], GOOD_VECTORS)
    run(tmp_path / "other", 2_000)  # a single part has 3,072 bytes of vectors


def test_a_part_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    with VectorFolder.open(tmp_path / "out") as folder, pytest.raises(UnicodeEncodeError):
        folder.write_part(0, "npy", ["\ud800"], np.zeros((1, 2), np.float32))
    assert list((tmp_path / "out").iterdir()) == []


def group_of(*texts: str) -> Group:
    """Return a group of documents with these texts."""
    return Group([Document(str(n), text, {}) for n, text in enumerate(texts)])


def stream(client: Client, groups: Iterable[Group], wait: Callable[[str], None] = lambda _: None) -> Generator[Group]:
    """Yield the groups as a stream answers them. The stream sends lost jobs again at once."""
    yield from JobStream(client, Options(), FINGERPRINT, DIMENSION, wait, send_again_s=0.0).embed(iter(groups))


class TestWaiting:
    def test_for_a_worker_and_room_in_the_lane(self, tmp_path: Path, queue: Queue, redis_url: str, keys: Keys) -> None:
        worker, steps = SteadyWorker(queue), []
        (tmp_path / "rows.txt").write_text("storm\nrain\n")
        queue.put("bulk", [Embed(["storm"])])

        def answer(progress: TaskProgress) -> None:
            steps.append(progress.step)
            if len(steps) == 1:
                worker.announce()
            else:
                worker.step()

        set_limits(queue, LaneLimits(max_jobs=1))
        with Client(redis_url, key_prefix=keys.prefix, pool=keys.pool) as client:
            request = BulkRequest(str(tmp_path / "rows.txt"), str(tmp_path / "out"))
            assert embed_file(request, client, answer).num_vectors == 2
        assert steps[0] == "waiting for a worker"
        assert "waiting for room in the lane" in steps

    def test_for_redis_to_take_the_jobs(
        self, source: Path, tmp_path: Path, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dispatcher, "GRACE_S", 0.0)
        monkeypatch.setattr(job_stream, "WAITING_EVERY_S", 0.05)
        queue, steps = Queue.connect(own_redis.url, Keys()), list[str]()
        worker = SteadyWorker(queue)

        def rows() -> Iterator[Group]:
            yield group_of("storm 0")
            own_redis.stop()  # stops before Redis has all jobs
            yield from (group_of("storm 1"), group_of("storm 2"))

        def restart(step: str) -> None:
            if not steps:
                own_redis.start()
            steps.append(step)
            assert len(steps) < 300
            with suppress(Unavailable):
                worker.step()

        with Client(own_redis.url) as client:
            found = [group.vectors for group in stream(client, rows(), restart) if group.vectors is not None]
        queue.close()
        assert steps[0] == "waiting for Redis"
        assert np.array_equal(np.concatenate(found), vectors_of(["storm 0", "storm 1", "storm 2"]))
        own_redis.stop()
        with Client(own_redis.url) as client, pytest.raises(Unavailable):  # the start does not wait for Redis
            embed_file(BulkRequest(str(source), str(tmp_path / "out")), client, ignore)

    def test_jobs_that_redis_lost_are_sent_again(self, client: Client, queue: Queue) -> None:
        worker, steps = SteadyWorker(queue), []
        worker.announce()

        def lose(step: str) -> None:
            steps.append(step)
            if len(steps) == 1:
                queue.redis.flushdb()
            worker.step()

        groups = [group_of("storm 0"), group_of("storm 1"), group_of("storm 2")]
        found = [group.vectors for group in stream(client, groups, lose) if group.vectors is not None]
        assert np.array_equal(np.concatenate(found), vectors_of(["storm 0", "storm 1", "storm 2"]))

    def test_a_reply_without_a_vector_for_each_text_is_refused(self, client: Client, queue: Queue) -> None:
        def answer(_: str) -> None:
            for delivery in queue.take("steady", ["bulk"], 1):
                job = delivery.job()
                reply = replace(steady_reply(job), vectors=vectors_of(["storm"]))
                queue.reply([Answer(delivery, reply, job.reply_to)])

        SteadyWorker(queue).announce()
        with pytest.raises(MalformedJob, match="does not fit a request with 2 texts"):
            next(stream(client, [group_of("storm", "rain")], answer))

    def test_internal_errors_of_some_texts_and_of_all(self, client: Client, steady: SteadyWorker) -> None:
        (group,) = stream(client, [group_of(*[BROKEN, "storm"] * job_stream.MAX_INTERNAL)])
        assert len(group.errors) == job_stream.MAX_INTERNAL
        with pytest.raises(Internal):
            next(stream(client, [group_of(*[BROKEN] * job_stream.MAX_INTERNAL)]))

    def test_jobs_of_a_slow_worker_stay(self, client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(job_stream, "WAITING_EVERY_S", 0.01)
        worker, taken, num_calls = SteadyWorker(queue), [], 0
        worker.announce()

        def compute(_: str) -> None:
            nonlocal num_calls
            num_calls += 1
            taken.extend(queue.take("steady", ["bulk"], 1))
            if num_calls % 5 == 0:  # by now the stream has looked for lost jobs several times
                delivery = taken.pop(0)
                job = delivery.job()
                assert queue.reply([Answer(delivery, steady_reply(job), job.reply_to)]) == 1

        groups = [group_of(*["storm"] * 33) for _ in range(3)]
        assert all(group.vectors is not None for group in stream(client, groups, compute))
        assert taken == []


@pytest.mark.parametrize("row", [Document("1", "storm", {}), Document("1", "storm" * 200, {}), BadRow(1, "bad")])
def test_few_rows_of_a_long_source_are_read_ahead(client: Client, steady: SteadyWorker, row: Row) -> None:
    num_read = 0

    def endless() -> Iterator[Group]:
        nonlocal num_read
        while True:
            num_read += MAX_GROUP_ROWS
            yield Group([row] * MAX_GROUP_ROWS)

    with closing(stream(client, endless())) as answered:
        for num_done, _ in enumerate(islice(answered, 100)):
            assert num_read - num_done * MAX_GROUP_ROWS <= MAX_WINDOW_ROWS
    assert num_done == 99  # the stream goes on, though the texts are longer than its window


@pytest.mark.parametrize("row", [{"text": "storm", "page": "x" * 2**20}, {"text": "storm", "id": "x" * 2**20}])
def test_unanswered_rows_need_little_memory(
    embed: EmbedSource, tmp_path: Path, steady: SteadyWorker, monkeypatch: pytest.MonkeyPatch, row: dict[str, str]
) -> None:
    held = 0

    def rows_of(rows: Iterator[Row], *_: Any) -> Iterator[Group]:
        nonlocal held
        for group in groups(rows, PART_ROWS, Options()):
            held = max(held, sum(len(doc.id) + len(str(doc.fields)) for doc in group.rows if isinstance(doc, Document)))
            yield group

    monkeypatch.setattr("shoal.bulk.embed_file.groups", rows_of)
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 8)
    embed(source=str(tmp_path / "rows.jsonl"))
    assert held <= 2**20 + 2


def test_a_real_worker_gives_the_vectors_of_the_client(tmp_path: Path, client: Client, worker: Worker) -> None:
    texts = [f"storm europe {n}" for n in range(150)]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    request = BulkRequest(str(tmp_path / "texts.txt"), str(tmp_path / "out"), options={"dimensions": 8})
    with announced(worker, LaneLimits()), running(worker):
        result = embed_file(request, client, ignore)
        expected = client.embed(texts, dimensions=8)
    assert (result.num_vectors, result.dimension) == (150, 8)
    ids, vectors = read(tmp_path / "out")
    assert ids == [str(n) for n in range(150)]
    assert vectors == pytest.approx(expected, abs=1e-5)
