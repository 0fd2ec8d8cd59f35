"""Schedules: long jobs at set times, from a file, by one of several runners."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from conftest import RedisServer
from process import run

from shoal.errors import BadSetting
from shoal.long_jobs.kind import KINDS
from shoal.long_jobs.long_jobs import MAX_ARGUMENT_BYTES, LongJobs
from shoal.settings import Settings
from shoal_workers.long_jobs.schedules import Schedules, read

NIGHTLY = """
[[schedule]]
cron = "0 3 * * *"
kind = "build_index"
webhook = "https://example.org/built"
name = "news"
source = "news.jsonl"

[[schedule]]
cron = "*/5 * * * *"
kind = "embed_file"
source = "a.csv"
out = "a"
"""


@pytest.fixture
def jobs(own_redis: RedisServer) -> Iterator[LongJobs]:
    """The long jobs of a Redis of the test's own."""
    with LongJobs(Settings(redis_url=own_redis.url)) as jobs:
        yield jobs


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of schedules."""
    path = tmp_path / "schedules.toml"
    path.write_text(NIGHTLY)
    return path


def begin(schedules: Schedules, *due: int) -> None:
    """Let the schedules' times be over: those of the numbers that are given."""
    for n, job in enumerate(schedules.get_jobs()):
        passed = timedelta(hours=-1 if n in due else 1)
        job.next_enqueue_time = datetime(2030, 1, 1, tzinfo=UTC) if n not in due else datetime.now(UTC) + passed


def test_a_job_is_submitted_when_its_time_has_come(jobs: LongJobs, file: Path) -> None:
    schedules = read(file, jobs, KINDS)
    nightly, often = schedules.get_jobs()
    assert nightly.next_enqueue_time
    assert nightly.next_enqueue_time.astimezone().hour == 3
    assert often.next_enqueue_time
    schedules.submit_due()
    assert jobs.list() == []
    begin(schedules, 0)
    schedules.submit_due()
    schedules.submit_due()
    (status,) = jobs.list()
    assert (status.kind, status.arguments) == ("build_index", {"name": "news", "source": "news.jsonl"})
    assert status.client == ":schedule"
    assert nightly.next_enqueue_time.astimezone().hour == 3


def test_the_log_tells_when_each_begins(jobs: LongJobs, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "shoal_workers"):
        read(file, jobs, KINDS)
    nightly, often = caplog.messages
    assert re.fullmatch(r"schedule 1 \(build_index\) begins at \d{4}-\d\d-\d\d 03:00", nightly)
    assert re.fullmatch(r"schedule 2 \(embed_file\) begins at \d{4}-\d\d-\d\d \d\d:\d[05]", often)


def test_of_two_runners_one_submits(jobs: LongJobs, file: Path) -> None:
    for schedules in (both := [read(file, jobs, KINDS) for _ in range(2)]):
        begin(schedules)
        schedules.get_jobs()[1].next_enqueue_time = datetime(2026, 1, 1, 3, tzinfo=UTC)
    for schedules in both:
        schedules.submit_due()
    assert len(jobs.list()) == 1


def test_those_of_one_time_are_all_submitted(jobs: LongJobs, file: Path) -> None:
    schedules = read(file, jobs, KINDS)
    for job in schedules.get_jobs():
        job.next_enqueue_time = datetime(2026, 1, 1, 3, tzinfo=UTC)
    schedules.submit_due()
    assert {status.kind for status in jobs.list()} == {"build_index", "embed_file"}


def test_a_job_that_cannot_be_submitted_waits_for_its_next_time(
    jobs: LongJobs, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schedules = read(file, jobs, KINDS)
    first, _ = schedules.get_jobs()
    first.kwargs["name"] = "x" * MAX_ARGUMENT_BYTES
    begin(schedules, 0, 1)
    schedules.submit_due()
    schedules.submit_due()
    assert [status.kind for status in jobs.list()] == ["embed_file"]
    assert first.next_enqueue_time
    assert first.next_enqueue_time > datetime.now(UTC)
    assert len(caplog.records) == 1


def test_without_redis_it_is_submitted_later(jobs: LongJobs, own_redis: RedisServer, file: Path) -> None:
    schedules = read(file, jobs, KINDS)
    begin(schedules, 1)
    own_redis.stop()
    schedules.submit_due()
    own_redis.start()
    while not jobs.list():
        schedules.submit_due()
    assert [status.kind for status in jobs.list()] == ["embed_file"]
    assert not any(job.should_run() for job in schedules.get_jobs())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[schedule]", "is no TOML"),
        ("[other]", r"takes \[\[schedule\]\] alone"),
        ("schedule = 1", r"takes \[\[schedule\]\] alone"),
        ("schedule = [1]", "schedule 1 is no table"),
        ("[[schedule]]", "schedule 1: cron is null"),
        ('[[schedule]]\ncron = "0 3 * *"\nkind = "embed_file"', 'cron is "0 3 \\* \\*": it takes a time such as'),
        ('[[schedule]]\ncron = "0 3 * * *"\nkind = "os.system"', 'kind is "os.system": it takes one of embed_file'),
        ('[[schedule]]\ncron = "0 3 * * *"\nkind = "send_webhook"', "kind is"),
        ('[[schedule]]\ncron = "0 3 * * *"\nkind = "embed_file"\nwebhook = 1', "webhook is 1"),
        (
            '[[schedule]]\ncron = "0 3 * * *"\nkind = "embed_file"\nwebhook = "example.org"',
            "1: webhook is .example.org",
        ),
        ('[[schedule]]\ncron = "0 3 * * *"\nkind = "embed_file"\nsource = "a"', "schedule 1: an argument is missing"),
        ('[[schedule]]\ncron = "0 3 * * *"\nkind = "build_index"\nsource = "a"\na = 1', "there is no argument .a."),
        ('[[schedule]]\ncron = "0 3 * * *"\nkind = "embed_file"\na = 2026-01-01', "has a value that JSON cannot hold"),
    ],
)
def test_a_wrong_file_is_refused(jobs: LongJobs, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "schedules.toml"
    path.write_text(text)
    with pytest.raises(BadSetting, match=message):
        read(path, jobs, KINDS)


def test_a_webhook_into_a_private_network_is_refused(jobs: LongJobs, tmp_path: Path) -> None:
    path = tmp_path / "schedules.toml"
    path.write_text(NIGHTLY.replace("https://example.org", "http://127.0.0.1:1"))
    with pytest.raises(BadSetting, match=r"schedule 1: the webhook http://127.* leads into a private network"):
        read(path, jobs, KINDS)
    assert len(read(path, jobs, KINDS, {"127.0.0.1"}).get_jobs()) == 2


def test_a_runner_without_its_file_ends_at_once(own_redis: RedisServer, tmp_path: Path) -> None:
    done = run("jobs", redis_url=own_redis.url, schedules=tmp_path / "none.toml")
    assert done.returncode == 1
    assert "which cannot be read" in done.stderr
    assert "[bad_setting]" in done.stderr


def test_a_runner_of_no_long_jobs_ends_at_once(own_redis: RedisServer) -> None:
    done = run("jobs", redis_url=own_redis.url, long_jobs=0)
    assert done.returncode == 1
    assert "long_jobs is 0: a runner takes at least 1" in done.stderr
