"""The functions of the kinds of long jobs. A job can call nothing else."""

import os
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from shoal.bulk import embed_file as bulk
from shoal.bulk.embed_file import BulkRequest
from shoal.client.redis.client import Client
from shoal.contract.excerpt import excerpt
from shoal.errors import FileError, InvalidRequest
from shoal.job_folders import JobFolders
from shoal.long_jobs.status import public_values
from shoal.process.allowed_path import allowed_path
from shoal.settings import Settings
from shoal.task_progress import Report, TaskProgress
from shoal_workers.index import long_jobs
from shoal_workers.index.build.document_encoder import PoolEncoder, served_digest
from shoal_workers.index.long_jobs import BuildIndex, ManageIndex, changes_of, where_is
from shoal_workers.index.store.store_process import upload_index
from shoal_workers.long_jobs.runnable_job import Task
from shoal_workers.long_jobs.webhook import send_webhook

_Request = TypeVar("_Request", bound=BulkRequest | BuildIndex | ManageIndex)


def functions(settings: Settings) -> dict[str, Task]:
    """Return the function of each kind."""
    tasks = (embed_file, build_index, manage_index, send_webhook)
    return {task.__name__: partial(task, settings) for task in tasks}


def embed_file(settings: Settings, arguments: Mapping[str, Any], job_id: str, report: Report) -> dict[str, Any]:
    """Embed a file into a folder: `arguments` are the fields of `BulkRequest`."""
    request = made(BulkRequest, arguments)
    source, out = (allowed_path(path, settings) for path in (request.source, request.out))
    request = replace(request, source=source, out=out)
    folders = JobFolders(settings)
    if owner := folders.owner_of(out):
        report = folders.limited(owner, report)
    with Client.from_settings(settings) as client:
        return asdict(bulk.embed_file(request, client, report, settings))


def build_index(settings: Settings, arguments: Mapping[str, Any], job_id: str, report: Report) -> dict[str, Any]:
    """Build a version of an index: `arguments` are the fields of `BuildIndex`."""
    request = made(BuildIndex, arguments)
    request = replace(request, source=allowed_path(request.source, settings))
    folder = where_is(settings, request.name)
    _check_writable(request.name, folder)
    with Client.from_settings(settings) as client:
        encoder, changes = PoolEncoder.find(client), changes_of(request.name, client)
        result = long_jobs.build_index(request, folder, encoder, report, settings=settings, changes=changes)
        progress = TaskProgress(result.count + result.num_bad, result.num_bad, result.first_bad, 1.0, "uploading")
        upload_index(settings, folder, lambda: report(progress))
        if changes:  # only now, because other machines need the changes until they serve the uploaded version
            changes.forget_folded(folder)
    return asdict(result)


def manage_index(settings: Settings, arguments: Mapping[str, Any], job_id: str, report: Report) -> dict[str, Any]:
    """List, publish, roll back or delete versions of an index: `arguments` are the fields of `ManageIndex`."""
    request = made(ManageIndex, arguments)
    folder = where_is(settings, request.name)
    if request.action != "list":
        _check_writable(request.name, folder)
    with Client.from_settings(settings) as client:
        changes = changes_of(request.name, client)
        result = long_jobs.manage_index(request, folder, served_digest(client), job_id)
        if request.action != "list":
            uploading = TaskProgress(step="uploading")
            upload_index(settings, folder, lambda: report(uploading))
            if changes:
                changes.forget_folded(folder)
    shown: dict[str, Any] = public_values(result, settings)
    return shown


def _check_writable(name: str, folder: Path) -> None:
    """Raise FileError if the runner may not write the folder of an index, for example one in a container image."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(there, os.W_OK, effective_ids=True):
        raise FileError(
            f"the runner cannot write the folder of the index {name}: build under another name, or give runner and "
            f"workers a folder of your own for it, with SHOAL_INDEXES={name}=FOLDER"
        )


def made(kind: type[_Request], arguments: Mapping[str, Any]) -> _Request:
    """Return the request with these arguments. Raises InvalidRequest for an unknown, missing or wrong argument."""
    names = [item.name for item in fields(kind)]
    if unknown := sorted(arguments.keys() - set(names)):
        raise InvalidRequest(f"there is no argument {excerpt(unknown[0])}: the arguments are {', '.join(names)}")
    try:
        return kind(**arguments)
    except TypeError as error:
        raise InvalidRequest(f"an argument is missing: the arguments are {', '.join(names)}") from error
