"""Long jobs that are submitted at set times, as a file of schedules says."""

import logging
import tomllib
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rq.cron import CronJob

from shoal.contract import wire
from shoal.contract.excerpt import excerpt
from shoal.errors import AddressNotAllowed, BadSetting, InvalidRequest, InvalidText, ShoalError
from shoal.long_jobs.long_jobs import LongJobs, check
from shoal.long_jobs.submission import WEBHOOK, Kind
from shoal.process import logs
from shoal.process.private_network import check_webhook
from shoal_workers.long_jobs.runnable_job import TEMPORARY_ERRORS
from shoal_workers.long_jobs.tasks import REQUESTS, made

log = logging.getLogger(__name__)

#: The fields of a schedule that are not arguments of its job.
FIELDS = ("cron", "kind", "webhook")

#: The name of the client that submits scheduled jobs. No key of the API can have this name.
CLIENT = ":schedule"


class ScheduledJob(CronJob):
    """A job that is submitted at the times of its schedule, once even if several runners have the same file."""

    def __init__(self, cron: str, kind: str, arguments: Mapping[str, Any], webhook: str | None, jobs: LongJobs):
        super().__init__("", func_name=kind, kwargs=dict(arguments), cron=cron)
        self.webhook, self._jobs = webhook, jobs
        self._is_late = False
        self._digest = blake2b(wire.pack({"job": [cron, kind, arguments, webhook]})).hexdigest()

    def submit_if_due(self) -> None:
        """Submit the job if it is due; after a temporary error, the next call tries again."""
        if not self.should_run():
            return
        at = (self.next_enqueue_time or datetime.now(UTC)).isoformat()
        key = f"{at} {self._digest}"
        try:
            job_id = self._jobs.submit(
                self.func_name, self.kwargs, webhook=self.webhook, idempotency_key=key, client=CLIENT
            )
        except ShoalError as error:
            if not self._is_late:
                log.error("a scheduled job could not be submitted: %s [%s]", error.message, error.code)
            self._is_late = isinstance(error, TEMPORARY_ERRORS)
        else:
            log.info("a long job was submitted, as its schedule says", extra=logs.about(job_id, kind=self.func_name))
            self._is_late = False
        if not self._is_late:
            self.set_enqueue_time(datetime.now(UTC))


def read(
    path: Path, jobs: LongJobs, kinds: Mapping[str, Kind], private_hosts: Collection[str] = ()
) -> list[ScheduledJob]:
    """Return the scheduled jobs of a file, and log the next time of each. Raises BadSetting for a wrong file."""
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"schedules is {path}, which cannot be read: check its name and permissions") from error
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(f"{path} is no TOML ({error}): see docs/long-jobs.md") from error
    entries = table.get("schedule", [])
    if set(table) - {"schedule"} or not isinstance(entries, list):
        raise BadSetting(f"{path} takes [[schedule]] alone: see docs/long-jobs.md")
    scheduled = [
        _scheduled(f"{path}, schedule {number}", entry, jobs, kinds, private_hosts)
        for number, entry in enumerate(entries, 1)
    ]
    for n, job in enumerate(scheduled, 1):
        begins_at = job.next_enqueue_time or datetime.now(UTC)
        log.info("schedule %d (%s) begins at %s", n, job.func_name, f"{begins_at.astimezone():%Y-%m-%d %H:%M}")
    return scheduled


def _scheduled(
    place: str, entry: Any, jobs: LongJobs, kinds: Mapping[str, Kind], private_hosts: Collection[str]
) -> ScheduledJob:
    if not isinstance(entry, dict):
        raise BadSetting(f"{place} is no table: write [[schedule]]")
    arguments = {name: value for name, value in entry.items() if name not in FIELDS}
    allowed = [name for name in kinds if name != WEBHOOK.name]
    checks: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
        ("cron", lambda value: isinstance(value, str), 'a time as cron has it, such as "0 3 * * *"'),
        ("kind", lambda value: value in allowed, f"one of {', '.join(allowed)}"),
        ("webhook", lambda value: value is None or isinstance(value, str), "a URL"),
    )
    for name, is_right, words in checks:
        if not is_right(entry.get(name)):
            raise BadSetting(f"{place}: {name} is {excerpt(entry.get(name))}: it takes {words}")
    if not wire.is_json(arguments):
        raise BadSetting(f"{place} has a value that JSON cannot hold, such as a date: write it as a string")
    cron, kind, webhook = entry["cron"], entry["kind"], entry.get("webhook")
    try:
        job = ScheduledJob(cron, kind, arguments, webhook, jobs)
    except (ValueError, KeyError, InvalidText) as error:
        raise BadSetting(f'{place}: cron is {excerpt(cron)}: it takes a time such as "0 3 * * *"') from error
    try:
        check(arguments, webhook)
        if webhook is not None:
            check_webhook(webhook, private_hosts)
        if request := REQUESTS.get(kind):
            made(request, arguments)
    except AddressNotAllowed as error:
        raise BadSetting(f"{place}: the webhook {error.message}") from error
    except InvalidRequest as error:
        raise BadSetting(f"{place}: {error.message}") from error
    return job
