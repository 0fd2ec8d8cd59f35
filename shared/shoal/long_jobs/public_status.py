"""The state of a long job as it leaves the pool: over HTTP, and to webhooks."""

import re
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from shoal.long_jobs.status import LongJobStatus
from shoal.settings import Settings


def public_map(job: LongJobStatus, settings: Settings) -> dict[str, Any]:
    """Return what is known of a job, without the names of the pool's machines and folders."""
    worker = blake2b(job.worker.encode(), digest_size=6).hexdigest() if job.worker else ""
    values = replace(job, worker=worker).to_map()
    shown: dict[str, Any] = public_values({name: values[name] for name in ("progress", "result", "error")}, settings)
    return values | shown


def public_text(text: str, settings: Settings) -> str:
    """Return a message in which paths are relative to the folders for files and for indexes."""
    return str(public_values(text, settings))


def public_values(value: Any, settings: Settings) -> Any:
    """Return a value as JSON has it, with such paths in all its texts."""
    # What stands in place of each folder, as it is named and as it is with all links followed.
    above = (settings.files_folder, settings.index_home_folder)
    ways = {f"{re.escape(str(path))}/": "" for folder in above for path in (folder.resolve(), folder)}
    for name, folder in settings.index_folders().items():
        ways |= {rf"{re.escape(str(path))}(?![\w-])": name for path in (folder.resolve(), folder)}
    return _without(value, {re.compile(way): word for way, word in ways.items()})


def _without(value: Any, folders: dict[re.Pattern[str], str]) -> Any:
    match value:
        case str():
            for folder, word in folders.items():
                value = folder.sub(word.replace("\\", r"\\"), value)
            return value
        case list() | tuple():
            return [_without(item, folders) for item in value]
        case dict():
            return {name: _without(item, folders) for name, item in value.items()}
        case _:
            return value
