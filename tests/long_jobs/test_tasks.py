"""The functions of long jobs, called without a runner, beside a worker that serves."""

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from blocking import ChangeLog
from changes import change
from conftest import WORDS
from queues import Queue

from shoal.errors import (
    DiskFull,
    IndexMismatch,
    InvalidRequest,
    NotReady,
    PathNotAllowed,
    ShoalError,
    Unavailable,
)
from shoal.job_folders import LOOK_EVERY_S, JobFolders, short_name
from shoal.long_jobs.submission import KINDS
from shoal.settings import Settings
from shoal.task_progress import Report, TaskProgress
from shoal_workers.index.files.manifest import MANIFEST
from shoal_workers.index.index import Index, current_version
from shoal_workers.long_jobs import tasks
from shoal_workers.long_jobs.tasks import functions
from shoal_workers.loop.worker import Worker
from shoal_workers.service.service import about


@pytest.fixture
def settings(queue: Queue, redis_url: str, tmp_path: Path) -> Settings:
    """Return settings of a runner in the test's pool, with a home folder for the test."""
    return Settings(redis_url=redis_url, key_prefix=queue.keys.prefix, pool=queue.keys.pool, home=str(tmp_path))


@pytest.fixture
def served(serving: Worker) -> None:
    """Let a worker serve and announce its model."""
    serving.pool.announce(serving.id, about(serving))


def do(settings: Settings, kind: str, job_id: str = "a" * 24, report: Report = lambda _: None, **arguments: Any) -> Any:
    """Call the function of a kind, and return its result."""
    return functions(settings)[kind](arguments, job_id, report)


def write(settings: Settings, *texts: str) -> str:
    """Write a file of texts into the folder for files, and return its relative path."""
    settings.files_folder.mkdir(exist_ok=True)
    lines = [json.dumps({"id": str(n), "text": text}) for n, text in enumerate(texts)]
    (settings.files_folder / "a.jsonl").write_text("\n".join(lines))
    return "a.jsonl"


@pytest.mark.usefixtures("served")
def test_results_over_http_have_a_limit_and_the_job_goes_on_when_there_is_room(settings: Settings) -> None:
    settings = replace(settings, max_results_mb=2)
    source, folders = write(settings, *WORDS), JobFolders(settings)
    old, new = (folders.folder / f"{short_name('ann')}-{digit * 24}" / "vectors" for digit in "01")
    look = folders.limited(short_name("ann"), lambda _: None, count(0.0, LOOK_EVERY_S / 2).__next__)
    look(TaskProgress())
    old.mkdir(parents=True)
    (old / "part-00000.npy").write_bytes(b"x" * (2**20 + 1))
    look(TaskProgress())  # too early for another look
    with pytest.raises(DiskFull):
        look(TaskProgress())
    with pytest.raises(DiskFull, match="of them for this client: delete jobs whose results are fetched"):
        do(settings, "embed_file", source=source, out=str(new))
    assert (old / "part-00000.npy").exists()
    assert do(settings, "embed_file", source=source, out="of-its-own")["rows"] == len(WORDS)
    assert (settings.files_folder / "of-its-own" / "manifest.json").exists()
    (old / "part-00000.npy").unlink()
    assert do(settings, "embed_file", source=source, out=str(new))["num_vectors"] == len(WORDS)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("has_store", [False, True])
def test_an_index_is_built_managed_and_stored(settings: Settings, tmp_path: Path, has_store: bool) -> None:
    folder, reports = settings.index_home_folder / "news", list[TaskProgress]()
    if has_store:
        (tmp_path / "store").mkdir()
        settings, folder = replace(settings, index_store=f"file://{tmp_path}/store"), tmp_path / "store" / "news"
    source = write(settings, *WORDS)
    first = do(settings, "build_index", report=reports.append, name="news", source=source)
    assert (first["count"], first["is_published"]) == (len(WORDS), True)
    assert ((reports[-1].step, reports[-1].rows) == ("uploading", len(WORDS))) is has_store
    again = do(settings, "build_index", name="news", source=source)  # as if the process had died
    assert (again["version"], again["is_unchanged"]) == (first["version"], True)
    source = write(settings, *WORDS[1:])
    second = do(settings, "build_index", "b" * 24, name="news", source=source)
    assert (second["num_embedded"], current_version(folder).name) == (0, second["version"])
    expected = {"version": second["version"], "is_current": True, "count": len(WORDS) - 1, "source": "a.jsonl"}
    listed = do(settings, "manage_index", name="news", action="list")
    assert listed["versions"][0].items() >= expected.items()
    manifest = settings.index_home_folder / "news" / first["version"] / MANIFEST
    right = manifest.read_text()
    manifest.write_text(json.dumps(json.loads(right) | {"digest": "f" * 64}))
    with pytest.raises(IndexMismatch):
        do(settings, "manage_index", name="news", action="publish", version=first["version"])
    manifest.write_text(right)
    back = do(settings, "manage_index", name="news", action="rollback")
    assert back["current"] == Index.open(folder).manifest.version == first["version"]
    gone = do(settings, "manage_index", name="news", action="delete", version=second["version"])
    assert [version["version"] for version in gone["versions"]] == [first["version"]]


@pytest.mark.usefixtures("served")
def test_a_build_folds_in_the_changes_of_its_index(queue: Queue, settings: Settings) -> None:
    arguments: dict[str, Any] = {"name": "news", "source": write(settings, *WORDS)}
    log = ChangeLog(queue.broker, queue.keys)
    log.append("news", change(["new"], ["0"], made_at=100.0))
    result = do(settings, "build_index", **arguments)
    assert (result["count"], result["num_changed"]) == (len(WORDS), 2)
    last = log.append("news", change(["newer"], made_at=200.0))
    dropped = do(settings, "build_index", "b" * 24, drop_changes_before=200, **arguments)
    assert (dropped["count"], dropped["num_changed"]) == (len(WORDS) + 1, 1)
    assert queue.redis.xlen(queue.keys.changes("news")) == 1  # the previous version still needs this change
    do(settings, "manage_index", name="news", action="delete", version=result["version"])
    assert queue.redis.xlen(queue.keys.changes("news")) == 0
    assert log.since("news", last).has_position


@pytest.mark.usefixtures("served")
def test_changes_stay_until_they_are_stored(queue: Queue, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    ChangeLog(queue.broker, queue.keys).append("news", change(["new"]))

    def fail(*arguments: object, **others: object) -> None:
        assert current_version(settings.index_home_folder / "news")
        raise Unavailable("the store is away")

    monkeypatch.setattr(tasks, "upload_index", fail)
    with pytest.raises(Unavailable):
        do(settings, "build_index", name="news", source=write(settings, *WORDS))
    assert queue.redis.xlen(queue.keys.changes("news")) == 1
    monkeypatch.undo()
    version = current_version(settings.index_home_folder / "news").name
    do(settings, "manage_index", name="news", action="publish", version=version)
    assert queue.redis.xlen(queue.keys.changes("news")) == 0


def test_wrong_arguments_are_refused(settings: Settings) -> None:
    assert functions(Settings()).keys() == KINDS.keys()
    cases: list[tuple[str, type[ShoalError], dict[str, Any]]] = [
        ("embed_file", PathNotAllowed, {"source": "/etc/passwd", "out": "a"}),
        ("embed_file", PathNotAllowed, {"source": "a.jsonl", "out": "../a"}),
        ("embed_file", InvalidRequest, {"source": "a.jsonl", "out": "s3://bucket/a"}),
        ("embed_file", InvalidRequest, {"source": "a.jsonl", "out": "a", "client": 1}),
        ("build_index", PathNotAllowed, {"name": "news", "source": "/etc/passwd"}),
        ("build_index", InvalidRequest, {"name": "../news", "source": "a.jsonl"}),
        ("build_index", InvalidRequest, {"name": "news"}),
        ("build_index", InvalidRequest, {"name": "news", "source": "a.jsonl", "folder": "/etc"}),
        ("build_index", NotReady, {"name": "news", "source": "a.jsonl"}),
        ("manage_index", InvalidRequest, {"name": "/etc", "action": "delete", "version": "a"}),
    ]
    for kind, error, arguments in cases:
        with pytest.raises(error):
            do(settings, kind, **arguments)
    with pytest.raises(InvalidRequest, match='unknown argument "nam": did you mean name'):
        do(settings, "build_index", nam="news", source="a.jsonl")
