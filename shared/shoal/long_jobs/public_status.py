"""The state of a long job as it leaves the pool: over HTTP, and to webhooks."""

from dataclasses import replace
from hashlib import blake2b
from typing import Any

from shoal.long_jobs.status import LongJobStatus
from shoal.settings import Settings


def public_map(job: LongJobStatus, settings: Settings) -> dict[str, Any]:
    """Return what is known of a job, without what clients need not know of the machines of the pool.

    Paths of uploads, results and indexes are relative to the folders that hold them, and the name of the runner, which
    has that of its machine, is a digest.
    """
    values = replace(job, worker=_digest(job.worker)).to_map()
    return values | {name: _without(values[name], _folders(settings)) for name in ("progress", "result", "error")}


def public_text(text: str, settings: Settings) -> str:
    """Return a message of a job with such paths."""
    return str(_without(text, _folders(settings)))


def _digest(worker: str) -> str:
    return blake2b(worker.encode(), digest_size=6).hexdigest() if worker else ""


def _folders(settings: Settings) -> list[str]:
    """Return the folders, with a slash each, as they are named and as they are with all links followed."""
    folders = (settings.files_folder, settings.index_home_folder)
    return [f"{path}/" for folder in folders for path in (folder.resolve(), folder)]


def _without(value: Any, folders: list[str]) -> Any:
    """Return a value as JSON has it, with the folders left out of its texts."""
    match value:
        case str():
            for folder in folders:
                value = value.replace(folder, "")
            return value
        case list() | tuple():
            return [_without(item, folders) for item in value]
        case dict():
            return {name: _without(item, folders) for name, item in value.items()}
        case _:
            return value
