"""The functions of the kinds of long jobs. Nothing else can be done by a job."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from shoal.errors import InvalidRequest
from shoal.excerpt import excerpt
from shoal.long_jobs.long_jobs import LongJobs
from shoal.long_task import Report
from shoal.settings import Settings
from shoal_workers.long_jobs import webhook
from shoal_workers.long_jobs.rq_worker import Task


def functions(settings: Settings) -> dict[str, Task]:
    """Return the function of each kind."""
    return {"send_webhook": partial(send_webhook, settings)}


def send_webhook(settings: Settings, arguments: Mapping[str, Any], job_id: str, report: Report) -> dict[str, Any]:
    """Tell a URL of the end of a job: `arguments` has the `url` and the `id` of the job."""
    url, of = _text(arguments, "url"), _text(arguments, "id")
    with LongJobs(settings) as jobs:
        values = jobs.status(of).to_map()
    return {"status": webhook.send(url, values, settings.webhook_secret, settings.private_host_names())}


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is {excerpt(value)}: it takes a string")
    return value
