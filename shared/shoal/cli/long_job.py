"""The commands `shoal job`: look at long jobs, pause, resume, cancel, retry and delete them."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.cli.shown.output import echo, echo_lines, when
from shoal.client.long_handle import LongHandle
from shoal.process.progress import TaskBar, task_line
from shoal.settings import Settings

if TYPE_CHECKING:
    from shoal.long_jobs.long_jobs import LongJobs
    from shoal.long_jobs.status import LongJobStatus

#: Exit status after Ctrl-C.
INTERRUPTED = 130


@click.group()
def job() -> None:
    """List, watch, stop, resume, retry and delete long jobs.

    A long job embeds a file or builds an index. A runner does it: `shoal serve` starts one, and so does `shoal jobs`.
    """


@job.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print each job as a line of JSON, with all its fields.")
@settings_options(*REDIS_SETTINGS)
def list_(settings: Settings, as_json: bool) -> None:
    """List the long jobs, the newest first."""
    with long_jobs(settings) as jobs:
        found = jobs.list()
    for status in found:
        echo(json.dumps(status.to_map(), ensure_ascii=False) if as_json else _outline(status))
    if not found:
        echo("no long jobs", err=True)


@job.command()
@click.argument("job_id")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@settings_options(*REDIS_SETTINGS)
def show(settings: Settings, job_id: str, as_json: bool) -> None:
    """Show a long job: what it does, how far it is, the first rows that it left out, its result or error."""
    with long_jobs(settings) as jobs:
        status = jobs.status(job_id)
    if as_json:
        echo_lines(json.dumps(status.to_map(), indent=2, ensure_ascii=False))
        return
    _print_details(status)


@job.command()
@click.argument("job_id")
@settings_options(*REDIS_SETTINGS)
def watch(settings: Settings, job_id: str) -> None:
    """Show the progress of a long job until it ends; Ctrl-C ends the look at it, and not the job.

    The exit status is 0 if the job is done, and 1 if it failed or was cancelled.
    """
    with long_jobs(settings) as jobs:
        status = jobs.status(job_id).status
        if status == "queued":
            _warn_without_runner(jobs)
        elif status == "paused":
            echo(f"the job is paused: `shoal job resume {job_id}` lets it go on", err=True)
        try:
            with TaskBar() as bar:
                LongHandle(jobs, job_id).wait(on_status=lambda status: _show(bar, status))
        except KeyboardInterrupt:
            echo(
                f"the job goes on: `shoal job watch {job_id}` looks at it again, `shoal job cancel {job_id}` ends it",
                err=True,
            )
            raise SystemExit(INTERRUPTED) from None
        ended = jobs.status(job_id)
    _print_details(ended)


@job.command()
@click.argument("job_ids", nargs=-1, required=True)
@settings_options(*REDIS_SETTINGS)
def pause(settings: Settings, job_ids: tuple[str, ...]) -> None:
    """Stop long jobs for a while; what is complete is kept."""
    _each(settings, job_ids, lambda jobs, job_id: jobs.pause(job_id), "paused")


@job.command()
@click.argument("job_ids", nargs=-1, required=True)
@settings_options(*REDIS_SETTINGS)
def resume(settings: Settings, job_ids: tuple[str, ...]) -> None:
    """Let paused long jobs go on with what they have completed."""
    _each(settings, job_ids, lambda jobs, job_id: jobs.resume(job_id))


@job.command()
@click.argument("job_ids", nargs=-1, required=True)
@settings_options(*REDIS_SETTINGS)
def cancel(settings: Settings, job_ids: tuple[str, ...]) -> None:
    """End long jobs; the parts of a result that they have written stay."""
    _each(settings, job_ids, lambda jobs, job_id: jobs.cancel(job_id), "cancelled")


@job.command()
@click.argument("job_ids", nargs=-1, required=True)
@settings_options(*REDIS_SETTINGS)
def retry(settings: Settings, job_ids: tuple[str, ...]) -> None:
    """Put long jobs that failed or were cancelled again; each goes on with what it has completed."""
    _each(settings, job_ids, lambda jobs, job_id: jobs.retry(job_id))


@job.command()
@click.argument("job_ids", nargs=-1, required=True)
@settings_options(*REDIS_SETTINGS)
def delete(settings: Settings, job_ids: tuple[str, ...]) -> None:
    """Forget long jobs that have ended; the folders that they have written stay."""
    with long_jobs(settings) as jobs:
        for job_id in job_ids:
            jobs.delete(job_id)
            echo(f"{job_id} is deleted")


def _each(
    settings: Settings, job_ids: tuple[str, ...], change: "Callable[[LongJobs, str], str]", soon: str = ""
) -> None:
    """Change each of the jobs and print its status; one that runs becomes `soon` when its process has noticed."""
    with long_jobs(settings) as jobs:
        for job_id in job_ids:
            status = change(jobs, job_id)
            echo(f"{job_id} is {status}" + (f", and {soon} in a moment" if soon and status == "running" else ""))


def long_jobs(settings: Settings) -> "LongJobs":
    """Return the long jobs of the pool that the settings name."""
    from shoal.long_jobs.long_jobs import LongJobs  # which loads what Redis takes

    return LongJobs(settings)


def submit(settings: Settings, kind: str, arguments: dict[str, Any], webhook: str | None) -> None:
    """Submit a long job, print its id, and say how to look at it.

    Raises AddressNotAllowed for a webhook into a private network.
    """
    from shoal.process.private_network import check_webhook  # which loads ssl

    if webhook is not None:
        check_webhook(webhook, settings.private_host_names())
    with long_jobs(settings) as jobs:
        job_id = jobs.submit(kind, arguments, webhook=webhook)
        echo(job_id)
        echo(f"watch it with: shoal job watch {job_id}", err=True)
        _warn_without_runner(jobs)


def _warn_without_runner(jobs: "LongJobs") -> None:
    if not jobs.num_runners():
        echo("no runner is alive, so the job waits: start one with `shoal serve` or `shoal jobs`", err=True)


def _show(bar: TaskBar, status: "LongJobStatus") -> None:
    """Show the state of a job that is watched: its progress while it runs, else its status in place of the step."""
    progress = status.progress
    if status.status == "running":
        bar(progress, progress.rows_per_s, progress.eta_s)
    elif not status.has_ended:
        bar(replace(progress, step=status.status), 0.0)


def _outline(status: "LongJobStatus") -> str:
    """Return the line of a job in a list."""
    progress = status.progress
    words = [status.id, when(status.submitted_at), f"{status.status:9}", f"{status.kind:12}", _subject(status)]
    if status.status in ("running", "paused"):
        words.append(f"({task_line(progress, progress.rows_per_s, progress.eta_s)})")
    elif status.error:
        words.append(f"({status.error['code']}: {status.error['message']})")
    return "  ".join(words)


def _subject(status: "LongJobStatus") -> str:
    """Return what a job works on, in words."""
    about = status.arguments
    return " ".join(
        f"{name} {about[name]}" for name in ("action", "source", "out", "name", "version") if about.get(name)
    )


def _print_details(status: "LongJobStatus") -> None:
    for name, value in _details(status):
        echo(f"{name}: {value}")


def _details(status: "LongJobStatus") -> Iterator[tuple[str, object]]:
    """Yield all that is known of a job that has a value, by its name."""
    progress = status.progress
    yield from (("id", status.id), ("kind", status.kind), ("status", status.status))
    yield from ((name, value) for name, value in status.arguments.items() if value not in (None, "", {}))
    yield "progress", task_line(progress, progress.rows_per_s, None if status.has_ended else progress.eta_s)
    for name in ("submitted_at", "started_at", "ended_at"):
        if (time_s := getattr(status, name)) is not None:
            yield name.removesuffix("_at"), when(time_s)
    if status.webhook:
        yield "webhook", _webhook_line(status.webhook)
    if status.worker:
        yield "runner", status.worker
    yield from (("left out", message) for message in progress.first_bad)
    if (more := progress.num_bad - len(progress.first_bad)) > 0:
        yield "left out", f"{more:,} more rows"
    for name, value in (status.result or {}).items():
        if name not in ("first_bad", *status.arguments):
            yield name, value
    if status.error:
        yield "error", f"{status.error['message']} [{status.error['code']}]"


def _webhook_line(webhook: Mapping[str, Any]) -> str:
    """Return what became of a webhook, in words."""
    error, words = webhook["error"], f"{webhook['status']}, {webhook['url']}"
    if webhook["answer"] is not None:
        words += f" answered {webhook['answer']}"
    return f"{words} ({error['message']} [{error['code']}])" if error else words
