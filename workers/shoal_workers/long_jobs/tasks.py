"""The functions of the kinds of long jobs. A job can call nothing else."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any, TypeVar

from shoal.bulk import embed_file as bulk
from shoal.bulk.embed_file import BulkRequest
from shoal.client.redis.client import Client
from shoal.contract.checks import check_known
from shoal.errors import InvalidRequest
from shoal.job_folders import JobFolders
from shoal.long_jobs.status import public_values
from shoal.process.allowed_path import allowed_path
from shoal.settings import Settings
from shoal.task_progress import Report, TaskProgress
from shoal_workers.index import long_jobs
from shoal_workers.index.build.document_encoder import PoolEncoder, served_digest
from shoal_workers.index.long_jobs import BuildIndex, ManageIndex, changes_of, where_is
from shoal_workers.index.store.copy_process import upload_index
from shoal_workers.long_jobs.runnable_job import Task

_Request = TypeVar("_Request", bound=BulkRequest | BuildIndex | ManageIndex)


def functions(settings: Settings) -> dict[str, Task]:
    """Return the function of each kind."""
    tasks = (embed_file, build_index, manage_index)
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
    with Client.from_settings(settings) as client:
        changes = changes_of(request.name, client)
        result = long_jobs.manage_index(request, folder, served_digest(client), job_id)
        if request.action != "list":
            uploading = TaskProgress(step="uploading")
            upload_index(settings, folder, lambda: report(uploading))
            if changes:
                changes.forget_folded(folder)
    return dict(public_values(result, settings))


def made(kind: type[_Request], arguments: Mapping[str, Any]) -> _Request:
    """Return the request with these arguments. Raises InvalidRequest for an unknown, missing or wrong argument."""
    names = [item.name for item in fields(kind)]
    check_known("argument", arguments, names)
    try:
        return kind(**arguments)
    except TypeError as error:
        raise InvalidRequest(f"an argument is missing: the arguments are {', '.join(names)}") from error
