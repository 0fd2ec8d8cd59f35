"""The functions of the kinds of long jobs. Nothing else can be done by a job."""

import hmac
import json
import os
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import asdict, fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from shoal.bulk import embed_file as bulk
from shoal.bulk.embed_file import BulkRequest
from shoal.client.redis.client import Client
from shoal.contract.excerpt import excerpt
from shoal.errors import FileError, InvalidRequest, Unavailable, UnknownJob
from shoal.job_folders import JobFolders
from shoal.long_jobs.long_jobs import LongJobs
from shoal.long_jobs.status import public_map, public_values
from shoal.long_task import Report, TaskProgress
from shoal.process.allowed_path import allowed_path
from shoal.process.private_network import send_request, without_query
from shoal.settings import Settings
from shoal_workers.index import long_tasks
from shoal_workers.index.build.document_encoder import PoolEncoder, served_digest
from shoal_workers.index.long_tasks import BuildIndex, ManageIndex, changes_of, where_is
from shoal_workers.index.store.store_process import upload_index
from shoal_workers.long_jobs.runnable_job import Task

#: The arguments of each kind that may be submitted.
REQUESTS: Mapping[str, type[BulkRequest | BuildIndex | ManageIndex]] = {
    "embed_file": BulkRequest,
    "build_index": BuildIndex,
    "manage_index": ManageIndex,
}

#: Header of the time and the signature.
SIGNATURE = "Shoal-Signature"

#: Longest wait for the receiver to connect and to answer, in seconds.
WEBHOOK_TIMEOUT_S = 5.0

_Request = TypeVar("_Request", bound=BulkRequest | BuildIndex | ManageIndex)


def functions(settings: Settings) -> dict[str, Task]:
    """Return the function of each kind."""
    tasks = (embed_file, build_index, manage_index, send_webhook)
    return {task.__name__: partial(task, settings) for task in tasks}


def embed_file(settings: Settings, arguments: Mapping[str, Any], job_id: str, report: Report) -> dict[str, Any]:
    """Embed a file into a folder: `arguments` are the fields of `BulkRequest`."""
    request = made(BulkRequest, arguments)
    source, out = (allowed_path(path, settings) for path in (request.source, request.out))
    if "://" in out:
        raise InvalidRequest(f"out is {excerpt(request.out)}: it takes a folder of this machine")
    request = replace(request, source=source, out=out)
    folders = JobFolders(settings)
    if owner := folders.owner_of(out):
        report = folders.limited(owner, report)
    with Client.from_settings(settings) as client:
        return asdict(bulk.embed_file(request, client, report, settings))


def build_index(settings: Settings, arguments: Mapping[str, Any], job_id: str, report: Report) -> dict[str, Any]:
    """Build a version of an index: `arguments` are the fields of `BuildIndex`."""
    # Earlier releases say `approximate` with every build.
    request = made(BuildIndex, {name: value for name, value in arguments.items() if name != "approximate"})
    request = replace(request, source=allowed_path(request.source, settings))
    folder = where_is(settings, request.name)
    _check_writable(request.name, folder)
    with Client.from_settings(settings) as client:
        encoder, changes = PoolEncoder.find(client), changes_of(request.name, client)
        given: dict[str, Any] = {"resume_key": job_id, "changes": changes}
        result = long_tasks.build_index(request, folder, encoder, report, settings=settings, **given)
        progress = TaskProgress(result.count + result.num_bad, result.num_bad, result.first_bad, 1.0, "uploading")
        upload_index(settings, folder, lambda: report(progress), is_published=result.is_published)
        if changes:  # now that no copy of an older version is the one to serve
            changes.forget_folded(folder)
    return asdict(result)


def manage_index(settings: Settings, arguments: Mapping[str, Any], job_id: str, report: Report) -> dict[str, Any]:
    """List, publish or delete versions of an index, or go back to one: `arguments` are the fields of `ManageIndex`."""
    request = made(ManageIndex, arguments)
    folder = where_is(settings, request.name)
    if request.action != "list":
        _check_writable(request.name, folder)
    with Client.from_settings(settings) as client:
        changes = changes_of(request.name, client)
        result = long_tasks.manage_index(request, folder, served_digest(client), job_id)
        if request.action != "list":
            uploading = TaskProgress(step="uploading")
            upload_index(settings, folder, lambda: report(uploading), is_published=request.action != "delete")
            if changes:
                changes.forget_folded(folder)
    shown: dict[str, Any] = public_values(result, settings)
    return shown


def send_webhook(settings: Settings, arguments: Mapping[str, Any], job_id: str, report: Report) -> dict[str, Any]:
    """Tell the `url` of the end of the job `id`, unless that was deleted, or was retried meanwhile."""
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
    """Return the value of the header: the time, and the HMAC-SHA-256 in hex of the time, a dot and the body."""
    digest = hmac.new(secret.encode(), f"{at_s}.".encode() + body, sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def send(url: str, values: Mapping[str, Any], secret: str, private_hosts: Collection[str]) -> int:
    """Send the values as JSON, signed if there is a secret, and return the status. Raises Unavailable."""
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


def _check_writable(name: str, folder: Path) -> None:
    """Raise FileError if the runner may not write the folder of an index, as that of an image."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(there, os.W_OK, effective_ids=True):
        raise FileError(
            f"the runner cannot write the folder of the index {name}: build under another name, or give runner and "
            f"workers a folder of your own for it, with SHOAL_INDEXES={name}=FOLDER"
        )


def made(kind: type[_Request], arguments: Mapping[str, Any]) -> _Request:
    """Return the request with these arguments. Raises InvalidRequest for one that is unknown, missing or wrong."""
    names = [item.name for item in fields(kind)]
    if unknown := sorted(arguments.keys() - set(names)):
        raise InvalidRequest(f"there is no argument {excerpt(unknown[0])}: there are {', '.join(names)}")
    try:
        return kind(**arguments)
    except TypeError as error:
        raise InvalidRequest(f"an argument is missing: there are {', '.join(names)}") from error
