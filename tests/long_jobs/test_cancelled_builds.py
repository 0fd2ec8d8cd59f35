"""A build that is cancelled while no process does it leaves nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_builder import MadeVectors

from shoal.contract.keys import Keys
from shoal.errors import Paused
from shoal.long_jobs.long_jobs import LongJobs
from shoal.long_task import TaskProgress
from shoal.records.source import Source
from shoal.settings import Settings
from shoal_workers.index.build.builder import build
from shoal_workers.index.build.scratch import SCRATCH
from shoal_workers.long_jobs.cancelled_builds import EVERY_S, CancelledBuilds


@pytest.fixture
def settings(redis_url: str, keys: Keys, tmp_path: Path) -> Settings:
    """Settings of the test's own pool, with a folder of indexes of its own."""
    named = f"faq={tmp_path}/faq"
    return Settings(
        redis_url=redis_url, key_prefix=keys.prefix, pool=keys.pool, home=str(tmp_path / "home"), indexes=named
    )


@pytest.fixture
def jobs(settings: Settings) -> Iterator[LongJobs]:
    """The long jobs of the test's own pool."""
    with LongJobs(settings) as jobs:
        yield jobs


def interrupt(out: Path, key: str) -> Path:
    """Begin a build of the index in `out` and break it off; return the folder that it leaves."""
    out.parent.mkdir(parents=True, exist_ok=True)
    source = out.parent / "source.txt"
    source.write_text("storm\n")
    with pytest.raises(Paused):
        build(Source(source), out, MadeVectors(breaks=Paused("stop")), key=key)
    return out / SCRATCH


def test_what_a_cancelled_build_has_left_is_removed(settings: Settings, jobs: LongJobs, tmp_path: Path) -> None:
    arguments = {"name": "news", "source": "a.csv"}
    ids = [jobs.submit("build_index", arguments) for _ in range(2)]
    left = [
        interrupt(out, key)
        for out, key in zip([tmp_path / "faq", settings.index_home_folder / "news"], ids, strict=True)
    ]
    others = [interrupt(settings.index_home_folder / key, key) for key in ("f" * 24, "cli")]
    others.append(interrupt(settings.index_home_folder / "keyless", ""))
    now_s = [0.0]
    builds = CancelledBuilds(settings, jobs, lambda: now_s[0])
    builds.remove()
    assert all(folder.exists() for folder in left)
    for job_id in ids:
        assert jobs.cancel(job_id) == "cancelled"
    builds.remove()
    assert all(folder.exists() for folder in left)
    now_s[0] += EVERY_S
    builds.remove()
    assert not any(folder.exists() for folder in left)
    assert all(folder.exists() for folder in others)


def test_what_a_deleted_build_has_left_is_removed(settings: Settings, jobs: LongJobs, tmp_path: Path) -> None:
    """As when a build was cancelled and deleted while no runner was alive."""
    job_id = jobs.submit("build_index", {"name": "faq", "source": "a.csv"})
    folder = interrupt(tmp_path / "faq", job_id)
    jobs.cancel(job_id)
    jobs.delete(job_id)
    CancelledBuilds(settings, jobs).remove()
    assert not folder.exists()


def test_what_a_build_has_that_goes_on_stays(settings: Settings, jobs: LongJobs, tmp_path: Path) -> None:
    """As when a job was cancelled and retried just now."""
    job_id = jobs.submit("build_index", {"name": "faq", "source": "a.csv"})
    jobs.cancel(job_id)
    interrupt(tmp_path / "faq", job_id)
    found = []

    def look(progress: TaskProgress) -> None:
        CancelledBuilds(settings, jobs).remove()
        found.append((tmp_path / "faq" / SCRATCH).exists())

    build(Source(tmp_path / "source.txt"), tmp_path / "faq", MadeVectors(), look, key=job_id)
    assert found
    assert all(found)
