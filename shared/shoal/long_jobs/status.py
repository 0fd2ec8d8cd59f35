"""The state of a long job for clients. In answers over HTTP it contains no private paths."""

import json
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
Status = Literal["queued", "running", "done", "failed", "cancelled"]

#: All states.
STATUSES: tuple[str, ...] = get_args(Status)

#: The states of a job that has ended.
ENDED: tuple[Status, ...] = ("done", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class LongJobStatus:
    """A long job's state. Times are in Unix seconds. `client` is the submitter's name.

    `error` has a code and a message. A queued job with an error waits for a retry.
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
    above = [path for path in (settings.files_folder, settings.index_home_folder) if path != Path("/")]
    places = [(folder, "/", "") for folder in above]
    places += [(folder, r"(?![\w-]|\.\w)", name) for name, folder in settings.index_folders().items()]
    places += [(folder, r"(?![\w-]|\.\w)", ".") for folder in above]
    text = _as_json(value)
    for folder, after, word in places:
        for path in (folder.resolve(), folder):
            text = re.sub(re.escape(_as_json(str(path))[1:-1]) + after, _as_json(word)[1:-1].replace("\\", r"\\"), text)
    return json.loads(text)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
