"""Schedules: long jobs from a file, which one of several runners submits at set times."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from conftest import RedisServer
from process import run

from shoal.errors import BadSetting
from shoal.long_jobs.long_jobs import MAX_ARGUMENT_BYTES, LongJobs
from shoal.long_jobs.submission import KINDS
from shoal.settings import Settings
from shoal_workers.long_jobs.schedules import ScheduledJob, read

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
    """Yield the long jobs in the test's own Redis."""
    with LongJobs(Settings(redis_url=own_redis.url)) as jobs:
        yield jobs


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file of schedules."""
    path = tmp_path / "schedules.toml"
    path.write_text(NIGHTLY)
    return path


def submit_due(scheduled: list[ScheduledJob]) -> None:
    """Submit the jobs that are due, as a runner does."""
    for job in scheduled:
        job.submit_if_due()


def test_a_job_is_submitted_when_its_time_has_come(
    jobs: LongJobs, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "shoal_workers"):
        scheduled = nightly, often = read(file, jobs, KINDS)
    for message, begins in zip(
        caplog.messages,
        (r"1 \(build_index\) begins at \d{4}-\d\d-\d\d 03:00", r"2 \(embed_file\) begins at .* \d\d:\d[05]"),
        strict=True,
    ):
        assert re.fullmatch(f"schedule {begins}", message)
    often.next_enqueue_time = datetime.now(UTC) + timedelta(hours=1)
    submit_due(scheduled)
    assert jobs.list() == []
    nightly.next_enqueue_time = datetime.now(UTC) - timedelta(hours=1)
    submit_due(scheduled)
    submit_due(scheduled)
    (status,) = jobs.list()
    assert (status.kind, status.arguments) == ("build_index", {"name": "news", "source": "news.jsonl"})
    assert status.client == ":schedule"
    assert nightly.next_enqueue_time.astimezone().hour == 3


def test_two_runners_submit_each_scheduled_job_once(jobs: LongJobs, file: Path) -> None:
    runners = [read(file, jobs, KINDS) for _ in range(2)]
    for scheduled in runners:
        for job in scheduled:
            job.next_enqueue_time = datetime(2026, 1, 1, 3, tzinfo=UTC)
        submit_due(scheduled)
    assert sorted(status.kind for status in jobs.list()) == ["build_index", "embed_file"]


def test_a_job_that_cannot_be_submitted_waits_for_its_next_time_or_for_redis(
    jobs: LongJobs, own_redis: RedisServer, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduled = read(file, jobs, KINDS)
    scheduled[0].kwargs["name"] = "x" * MAX_ARGUMENT_BYTES
    for job in scheduled:
        job.next_enqueue_time = datetime.now(UTC) - timedelta(hours=1)
    own_redis.stop()
    submit_due(scheduled)
    assert [job.should_run() for job in scheduled] == [False, True]
    own_redis.start()
    for _ in range(1_000):
        submit_due(scheduled)
        if jobs.list():
            break
    assert [status.kind for status in jobs.list()] == ["embed_file"]
    assert not any(job.should_run() for job in scheduled)
    assert ["could not be submitted" in message for message in caplog.messages] == [True, True]


#: The first lines of a schedule.
AT_THREE = '[[schedule]]\ncron = "0 3 * * *"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[schedule]", "is no TOML"),
        ("[other]", r"takes \[\[schedule\]\] alone"),
        ("schedule = 1", r"takes \[\[schedule\]\] alone"),
        ("schedule = [1]", "schedule 1 is no table"),
        ("[[schedule]]", "schedule 1: cron is null"),
        ('[[schedule]]\ncron = "0 3 * *"\nkind = "embed_file"', 'cron is "0 3 \\* \\*": it takes a time such as'),
        (f'{AT_THREE}kind = "os.system"', 'kind is "os.system": it takes one of embed_file'),
        (f'{AT_THREE}kind = "send_webhook"', "kind is"),
        (f'{AT_THREE}kind = "embed_file"\nwebhook = 1', "webhook is 1"),
        (f'{AT_THREE}kind = "embed_file"\nwebhook = "example.org"', "1: webhook is .example.org"),
        (f'{AT_THREE}kind = "embed_file"\nsource = "a"', "schedule 1: an argument is missing"),
        (f'{AT_THREE}kind = "build_index"\nsource = "a"\na = 1', "there is no argument .a."),
        (f'{AT_THREE}kind = "embed_file"\na = 2026-01-01', "has a value that JSON cannot hold"),
        (NIGHTLY.replace("https://example.org", "http://127.0.0.1:1"), "1: the webhook .* leads into a private"),
    ],
)
def test_a_wrong_file_is_refused(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with LongJobs(Settings()) as jobs, pytest.raises(BadSetting, match=message):
        read(file, jobs, KINDS)


def test_a_webhook_may_go_to_a_private_host_of_the_settings(file: Path) -> None:
    file.write_text(NIGHTLY.replace("https://example.org", "http://127.0.0.1:1"))
    with LongJobs(Settings()) as jobs:
        assert len(read(file, jobs, KINDS, {"127.0.0.1"})) == 2


def test_a_runner_with_wrong_settings_ends_at_once(own_redis: RedisServer, tmp_path: Path) -> None:
    for setting, message in (
        ({"schedules": tmp_path / "none.toml"}, "which cannot be read"),
        ({"long_jobs": 0}, "long_jobs is 0: a runner takes at least 1"),
    ):
        done = run("jobs", redis_url=own_redis.url, **setting)
        assert done.returncode == 1
        assert message in done.stderr
        assert "[bad_setting]" in done.stderr
