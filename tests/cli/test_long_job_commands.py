"""The commands `shoal job`: their output about long jobs without a runner, and their changes."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import wait_until
from process import Process
from test_cli import fail, succeed

from shoal import Client
from shoal.cli import long_job
from shoal.cli.main import main
from shoal.long_jobs.status import LongJobStatus

pytest_plugins = ["cli_fixtures"]


@pytest.fixture
def job_id(client: Client, tmp_path: Path) -> Iterator[str]:
    """Return the id of a job that waits for a runner."""
    job = client.bulk(tmp_path / "news.csv", tmp_path / "vectors", text_column="headline")
    yield job.id
    job.cancel()


def test_jobs_are_listed_and_shown(shoal: CliRunner, client: Client, job_id: str, tmp_path: Path) -> None:
    (line,) = succeed(shoal.invoke(main, ["job", "list"])).splitlines()
    assert line.startswith(job_id)
    assert f"queued     embed_file    source {tmp_path}/news.csv out {tmp_path}/vectors" in line
    shown = json.loads(succeed(shoal.invoke(main, ["job", "show", job_id])))
    assert shown == client.long_jobs.status(job_id).to_map()
    error = {"code": "file_error", "message": "gone"}
    assert long_job._outline(LongJobStatus("a", "embed_file", "failed", {}, 0.0, error=error)).endswith(
        "(file_error: gone)"
    )


def test_a_job_is_cancelled_retried_and_deleted(shoal: CliRunner, client: Client, tmp_path: Path) -> None:
    job_id = client.bulk(tmp_path / "news.csv", tmp_path / "vectors").id
    for command, status in (("cancel", "cancelled"), ("retry", "queued")):
        assert succeed(shoal.invoke(main, ["job", command, job_id])) == f"{job_id} is {status}\n"
    assert job_id in fail(shoal.invoke(main, ["job", "retry", job_id]), "invalid_request")
    assert job_id in fail(shoal.invoke(main, ["job", "delete", job_id]), "job_not_ended")
    succeed(shoal.invoke(main, ["job", "cancel", job_id]))
    assert job_id in fail(shoal.invoke(main, ["job", "watch", job_id]), "cancelled")
    assert succeed(shoal.invoke(main, ["job", "delete", job_id])) == f"{job_id} is deleted\n"
    for command in ("show", "watch", "cancel", "retry", "delete"):
        fail(shoal.invoke(main, ["job", command, job_id]), "unknown_job")


def test_ctrl_c_ends_watching_a_job_and_not_the_job(
    shoal: CliRunner, job_id: str, pool_settings: dict[str, str], tmp_path: Path
) -> None:
    with Process(tmp_path / "log", "job", "watch", job_id, **pool_settings) as watch:
        wait_until(lambda: "queued: 0 rows" in watch.output)
        watch.send(signal.SIGINT)
        assert watch.wait() == 130
    assert "no runner is alive" in watch.output
    assert re.search(rf"the job goes on: .*watch {job_id}.*cancel {job_id}", watch.output)
    assert json.loads(succeed(shoal.invoke(main, ["job", "show", job_id])))["status"] == "queued"


def test_builds_and_files_are_left_to_a_runner(shoal: CliRunner, client: Client, tmp_path: Path) -> None:
    build = ["index", "build", "news.csv", "--name", "news", "--no-publish", "--detach"]
    embed = ["embed", "--file", "news.csv", "--out", str(tmp_path / "vectors"), "--dimensions", "8", "--detach"]
    options = {"out": str(tmp_path / "vectors"), "text_column": "headline", "options": {"dimensions": 8}}
    for command, arguments in (
        (build, {"name": "news", "publish": False}),
        ([*embed, "--text-column", "headline"], options),
    ):
        result = shoal.invoke(main, command)
        job_id = succeed(result).strip()
        assert f"shoal job watch {job_id}" in result.stderr
        assert "no runner is alive" in result.stderr
        about = client.long_jobs.status(job_id)
        assert about.kind == {"index": "build_index", "embed": "embed_file"}[command[0]]
        assert about.arguments.items() >= {"source": str(Path("news.csv").absolute()), **arguments}.items()
        client.long_job(job_id).cancel()


def test_a_submission_that_cannot_work_is_refused(shoal: CliRunner, tmp_path: Path) -> None:
    for arguments in ("--name news", "a.csv --out x", "a.csv --name x --local"):
        result = shoal.invoke(main, ["index", "build", *arguments.split(), "--detach"])
        assert (result.exit_code, "--detach takes a SOURCE and --name" in result.stderr) == (2, True)
    result = shoal.invoke(main, ["embed", "storm", "--out", str(tmp_path / "vectors.npy"), "--detach"])
    assert "--detach goes with a folder" in fail(result, "invalid_request")
