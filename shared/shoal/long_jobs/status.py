"""The state of a long job for clients. In answers over HTTP and in webhooks it contains no private paths."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, get_args

from shoal.errors import BY_CODE, Cancelled, Internal, ShoalError
from shoal.settings import Settings
from shoal.task_progress import TaskProgress

#: The states of a long job.
Status = Literal["queued", "running", "paused", "done", "failed", "cancelled"]

#: All states.
STATUSES: tuple[str, ...] = get_args(Status)

#: The states of a job that has ended.
ENDED: tuple[Status, ...] = ("done", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class LongJobStatus:
    """A long job's state. Times are in Unix seconds. `error` has a code and a message; `client` is the submitter's
    name.

    A queued job with an error waits for a retry. `webhook` has the `url` without its query, the `status` (pending, sent
    or failed), the HTTP status of the `answer`, and the `error` of the last try; lists of jobs leave `webhook` out.
    """

    id: str
    kind: str
    status: str
    arguments: Mapping[str, Any]
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    progress: TaskProgress = field(default_factory=TaskProgress)
    result: Any = None
    error: Mapping[str, str] | None = None
    worker: str = ""
    client: str = ""
    webhook: Mapping[str, Any] | None = None

    @property
    def has_ended(self) -> bool:
        """True if the job is done, failed or cancelled."""
        return self.status in ENDED

    def failure(self) -> ShoalError | None:
        """Return the error with which the job failed, or Cancelled; None for a job in another state."""
        if self.status == "cancelled":
            return Cancelled(f"job {self.id} was cancelled")
        if self.status != "failed":
            return None
        about = self.error or {}
        message = about.get("message") or f"job {self.id} failed without a reason: see the runner's log"
        return BY_CODE.get(about.get("code", ""), Internal)(message)

    def to_map(self) -> dict[str, Any]:
        """Return the values by their names, for JSON, without the client."""
        values = asdict(self) | {"progress": self.progress.to_map()}
        del values["client"]
        return values


def public_map(job: LongJobStatus, settings: Settings) -> dict[str, Any]:
    """Return a job as a map from names to values. Names of the pool's machines and folders are left out."""
    worker = blake2b(job.worker.encode(), digest_size=6).hexdigest() if job.worker else ""
    values = replace(job, worker=worker).to_map()
    shown: dict[str, Any] = public_values({name: values[name] for name in ("progress", "result", "error")}, settings)
    return values | shown


def public_text(text: str, settings: Settings) -> str:
    """Return a message with paths relative to the folders for files and indexes."""
    return str(public_values(text, settings))


def public_values(value: Any, settings: Settings) -> Any:
    """Return a value for JSON, with paths in all its texts relative to the folders for files and indexes."""
    # Patterns for each folder's path, as given and with all links followed, and their replacements.
    above = [path for path in (settings.files_folder, settings.index_home_folder) if path != Path("/")]
    words = {f"{re.escape(str(path))}/": "" for folder in above for path in (folder.resolve(), folder)}
    for name, folder in [*settings.index_folders().items(), *((".", folder) for folder in above)]:
        words |= {rf"{re.escape(str(path))}(?![\w-]|\.\w)": name for path in (folder.resolve(), folder)}
    return _replaced(value, {re.compile(pattern): word for pattern, word in words.items()})


def _replaced(value: Any, words: dict[re.Pattern[str], str]) -> Any:
    match value:
        case str():
            for pattern, word in words.items():
                value = pattern.sub(word.replace("\\", r"\\"), value)
            return value
        case list() | tuple():
            return [_replaced(item, words) for item in value]
        case dict():
            return {name: _replaced(item, words) for name, item in value.items()}
        case _:
            return value
