"""The commands `shoal job`: look at long jobs, cancel, retry and delete them."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.cli.output import echo, echo_lines, when
from shoal.process.progress import TaskBar, task_line
from shoal.settings import Settings

if TYPE_CHECKING:
    from shoal.long_jobs.long_jobs import LongJobs
    from shoal.long_jobs.status import LongJobStatus


@click.group()
def job() -> None:
    """List, watch, cancel, retry and delete long jobs.

    A long job embeds a file or builds an index. A runner does it: `shoal serve` starts one, and so does `shoal jobs`.
    """


@job.command("list")
@settings_options(*REDIS_SETTINGS)
def list_(settings: Settings) -> None:
    """List the long jobs, the newest first."""
    with long_jobs(settings) as jobs:
        found = jobs.list()
    for status in found:
        echo(_outline(status))
    if not found:
        echo("no long jobs", err=True)


@job.command()
@click.argument("job_id")
@settings_options(*REDIS_SETTINGS)
def show(settings: Settings, job_id: str) -> None:
    """Print a long job as JSON: its arguments, its progress, the first rows that it left out, its result or error."""
    with long_jobs(settings) as jobs:
        _print_details(jobs.status(job_id))


@job.command()
@click.argument("job_id")
@settings_options(*REDIS_SETTINGS)
def watch(settings: Settings, job_id: str) -> None:
    """Show the progress of a long job until it ends. Ctrl-C stops watching, and not the job.

    The exit status is 0 if the job is done, and 1 if it failed or was cancelled.
    """
    from shoal.client.long_job_handles import LongHandle  # imported late, because it loads msgpack

    with long_jobs(settings) as jobs:
        if jobs.status(job_id).status == "queued":
            _warn_without_runner(jobs)

        bar = TaskBar()

        def report(status: "LongJobStatus") -> None:
            if status.status == "running":
                bar(status.progress)
            elif not status.has_ended:
                bar(replace(status.progress, step=status.status, rows_per_s=0.0, eta_s=None))

        try:
            LongHandle(jobs, job_id).wait(on_status=report)
        except KeyboardInterrupt:
            echo(f"the job goes on: `shoal job watch {job_id}` shows it, `shoal job cancel {job_id}` ends it", err=True)
            raise SystemExit(130) from None  # the usual status after Ctrl-C
        _print_details(jobs.status(job_id))


def _change_command(name: str, help_text: str, soon: str = "") -> None:
    """Add a command that calls the method `name` of `LongJobs`. A running job gets the status `soon` a little later."""

    @job.command(name, help=help_text)
    @click.argument("job_ids", nargs=-1, required=True)
    @settings_options(*REDIS_SETTINGS)
    def change(settings: Settings, job_ids: tuple[str, ...]) -> None:
        with long_jobs(settings) as jobs:
            for job_id in job_ids:
                status = getattr(jobs, name)(job_id) or "deleted"
                echo(f"{job_id} is {status}" + (f", and {soon} in a moment" if soon and status == "running" else ""))


_change_command("cancel", "Stop long jobs; their complete parts are kept.", "cancelled")
_change_command("retry", "Let long jobs that failed or were cancelled continue after their complete parts.")
_change_command("delete", "Delete long jobs that have ended from the list; the folders that they have written stay.")


def long_jobs(settings: Settings) -> "LongJobs":
    """Return the long jobs of the pool that the settings name."""
    from shoal.long_jobs.long_jobs import LongJobs  # imported late, because it loads the client of Redis

    return LongJobs(settings)


def submit(settings: Settings, kind: str, arguments: dict[str, Any]) -> None:
    """Submit a long job, and print its id and how to watch it."""
    with long_jobs(settings) as jobs:
        job_id = jobs.submit(kind, arguments)
        echo(job_id)
        echo(f"watch it with: shoal job watch {job_id}", err=True)
        _warn_without_runner(jobs)


def _warn_without_runner(jobs: "LongJobs") -> None:
    if not jobs.num_runners():
        echo("no runner is alive, so the job waits: start one with `shoal serve` or `shoal jobs`", err=True)


def _outline(status: "LongJobStatus") -> str:
    """Return the line that describes a job in a list."""
    progress, about = status.progress, status.arguments
    words = [status.id, when(status.submitted_at), f"{status.status:9}", f"{status.kind:12}"]
    names = ("action", "source", "out", "name", "version")
    words.append(" ".join(f"{name} {about[name]}" for name in names if about.get(name)))
    if status.status == "running":
        words.append(f"({task_line(progress)})")
    elif status.error:
        words.append(f"({status.error['code']}: {status.error['message']})")
    return "  ".join(words)


def _print_details(status: "LongJobStatus") -> None:
    echo_lines(json.dumps(status.to_map(), indent=2, ensure_ascii=False))
