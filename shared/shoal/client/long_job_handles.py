"""Handles of long jobs and of indexes, over Redis and over HTTP, for programs without an event loop."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from shoal.client.job_source import File
from shoal.contract.checks import check_known
from shoal.errors import Timeout, Unavailable
from shoal.long_jobs.status import LongJobStatus
from shoal.records.given_document import Given
from shoal.task_progress import TaskProgress

if TYPE_CHECKING:
    from shoal.client.http.long_jobs import HttpLongJobs
    from shoal.long_jobs.long_jobs import LongJobs

#: A function that is called with each state of a long job that a client receives.
OnStatus = Callable[[LongJobStatus], object]

#: The first and the longest pause between two queries for a job's state, in seconds.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 0.5

#: Longest time that a wait goes on while neither Redis nor the API answers, in seconds.
MAX_AWAY_S = 60.0

#: Longest time to wait for a change of an index's versions, in seconds. The change may queue behind others.
CHANGE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class LongHandle:
    """A long job that was submitted. Thread-safe."""

    jobs: "LongJobs | HttpLongJobs"
    id: str

    def status(self) -> str:
        """Return one of queued, running, done, failed and cancelled."""
        return self.jobs.status(self.id).status

    def progress(self) -> TaskProgress:
        """Return the numbers of rows and bad rows, messages of the first bad rows, the speed, and the time left."""
        return self.jobs.status(self.id).progress

    def wait(self, timeout_s: float | None = None, on_status: OnStatus | None = None) -> dict[str, Any]:
        """Wait until the job is done and return its result; without `timeout_s` there is no limit.

        `on_status` is called with each received state, about twice a second. If Redis or the API does not answer, the
        wait goes on for up to a minute. Raises the error of a failed job, Cancelled, and Timeout.
        """
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        answered_at, pause_s = -math.inf, FIRST_PAUSE_S
        while True:
            try:
                status = self.jobs.status(self.id)
            except Unavailable:
                if time.monotonic() - answered_at > MAX_AWAY_S:  # also ends the wait if no answer ever came
                    raise
            else:
                answered_at = time.monotonic()
                if on_status:
                    on_status(status)
                if error := status.failure():
                    raise error
                if status.has_ended:
                    return dict(status.result or {})
            if (left_s := until - time.monotonic()) <= 0:
                raise Timeout(f"job {self.id} is not done after {timeout_s:g} s: it goes on, wait again")
            time.sleep(min(pause_s, left_s))
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)

    def cancel(self) -> str:
        """Stop the job, keeping its finished work; return its status."""
        return self.jobs.cancel(self.id)

    def retry(self) -> str:
        """Let a failed or cancelled job continue; return its status."""
        return self.jobs.retry(self.id)

    def delete(self) -> None:
        """Delete the job from the list of long jobs; raise JobNotEnded if it has not ended.

        The files of a job that was submitted over HTTP are deleted too. A folder that the submitter named stays.
        """
        self.jobs.delete(self.id)


class BuildOptions(TypedDict, total=False):
    """The options of a build. An option that is not given has the default of the long job `build_index`."""

    text_column: str | None  #: by default the column that looks like texts
    id_column: str | None  #: by default the column `id`, else `_id`, else the positions from 0
    on_bad: str  #: "raise": a bad row ends the build; "skip": bad rows are left out
    publish: bool  #: False: the version is built but not served
    full: bool  #: True: embed all texts, even if the version built last has their vectors
    drop_changes_before: float | None  #: ignore documents added or deleted before this time, in Unix seconds
    language: str | None  #: language of the texts, such as "english", or "none"; by default it is detected
    chunk_tokens: int | None  #: most tokens of a chunk; each chunk of a document becomes a row of the index
    chunk_overlap: int  #: most tokens that two neighbouring chunks share
    field_kinds: list[str]  #: kinds of fields, such as "year=number"; other kinds are detected from the values
    token_vectors: bool  #: True: keep the token vectors of a late-interaction reranker, for second stages of searches
    idempotency_key: str | None  #: the same build with the same key within a day makes no second job


@dataclass(frozen=True, slots=True)
class IndexHandle(ABC):
    """An index by its name. Thread-safe.

    Documents are added and deleted while the index is served. Runners build the index and change its versions. The
    methods that return versions wait for a runner, at most `CHANGE_TIMEOUT_S`, and raise NotReady if none is alive. A
    version is a map with `version`, `count`, `built_at`, `model`, `source`, `size_bytes`, `is_current` and `error`. The
    newest version comes first.
    """

    jobs: "LongJobs | HttpLongJobs"
    name: str

    @abstractmethod
    def add(self, documents: Iterable[Given]) -> int:
        """Add documents to the index and return their number. A document replaces the document that has its id.

        A document is a map of `id`, `text` and any other fields that JSON can express. Every worker finds it within two
        seconds. One step adds at most 256 documents, or 32 over HTTP. The error of a later step says how many documents
        are written. Raises BadDocument or InvalidText, which name the document; UnknownIndex, NotReady and TooLarge;
        and TooManyChanges if 10,000 documents were added or deleted since the last build.
        """

    @abstractmethod
    def delete(self, ids: Iterable[str]) -> int:
        """Delete the documents with these ids; return the number of ids, including ids without a document.

        One step deletes at most 1,000 documents. Raises the errors of `add`, and InvalidRequest, which names the wrong
        id.
        """

    def build(self, source: File, **options: Unpack[BuildOptions]) -> LongHandle:
        """Submit a build of a new version from a file of documents, and return at once.

        `source` is the path of a file, or a `ServerFile`. Over HTTP, a file is uploaded. Over Redis, the runner has the
        file below its roots. The options are the fields of `BuildOptions`.
        """
        check_known("option", options, BuildOptions.__annotations__)
        return LongHandle(self.jobs, self._build(source, {**options}))

    def versions(self) -> list[dict[str, Any]]:
        """Return the versions of the index."""
        return self._manage("list")

    def publish(self, version: str) -> list[dict[str, Any]]:
        """Make a version the current one, which searches then use; return the versions."""
        return self._manage("publish", version)

    def rollback(self) -> list[dict[str, Any]]:
        """Make the previously published version the current one again; return the versions."""
        return self._manage("rollback")

    def delete_version(self, version: str) -> list[dict[str, Any]]:
        """Delete a version other than the current one; return the remaining versions."""
        return self._manage("delete", version)

    @abstractmethod
    def _build(self, source: File, options: dict[str, Any]) -> str:
        """Submit a build and return the job's id."""

    @abstractmethod
    def _manage(self, action: str, version: str | None = None) -> list[dict[str, Any]]:
        """Ask a runner to do the action; return the versions that exist afterwards."""
