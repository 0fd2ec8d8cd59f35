"""The webhook: an HTTP request that reports the end of a long job. Sending it is a long job too, with retries."""

import hmac
import json
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from hashlib import sha256
from typing import Any

from shoal.errors import FileError, InvalidRequest, Unavailable, UnknownJob
from shoal.long_jobs.long_jobs import LongJobs
from shoal.long_jobs.status import public_map
from shoal.process.private_network import send_request, without_query
from shoal.settings import Settings
from shoal.task_progress import Report

#: The header with the time and the signature.
SIGNATURE = "Shoal-Signature"

#: Longest wait for the connection to the receiver, and for each part of its answer, in seconds.
WEBHOOK_TIMEOUT_S = 5.0


def send_webhook(settings: Settings, arguments: Mapping[str, Any], job_id: str, report: Report) -> dict[str, Any]:
    """Report the end of the job `id` to the `url`, unless the job was deleted or retried meanwhile."""
    url, of = (arguments.get(name) for name in ("url", "id"))
    if not isinstance(url, str) or not isinstance(of, str):
        raise InvalidRequest("a webhook takes url and id, two strings")
    try:
        with LongJobs(settings) as jobs:
            job = jobs.status(of)
    except UnknownJob:
        return {"status": None}
    if not job.has_ended:
        return {"status": None}
    values = public_map(job, settings)
    del values["webhook"]
    return {"status": send(url, values, settings.webhook_secret, settings.private_host_names())}


def sign(secret: str, body: bytes, at_s: int) -> str:
    """Return the header's value: the time, and the HMAC-SHA-256 of the time, a dot and the body, in hex digits."""
    digest = hmac.new(secret.encode(), f"{at_s}.".encode() + body, sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def send(url: str, values: Mapping[str, Any], secret: str, private_hosts: Collection[str]) -> int:
    """Send the values as JSON, signed if there is a secret, and return the HTTP status. Raises Unavailable."""
    body = json.dumps(values, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "shoal"}
    if secret:
        headers[SIGNATURE] = sign(secret, body, int(time.time()))
    try:
        with closing(send_request(url, private_hosts, "POST", body, headers, WEBHOOK_TIMEOUT_S)) as response:
            status = int(response.status)
    except FileError as error:
        raise Unavailable(error.message) from error
    if not 200 <= status < 300:
        raise Unavailable(f"{without_query(url)} answered {status}: a webhook takes an answer of 200 to 299")
    return status
