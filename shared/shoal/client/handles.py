"""The handles of long jobs and of indexes for programs without an event loop, whichever way a client reaches them."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from shoal.client.source import File, Item
from shoal.errors import Timeout, Unavailable
from shoal.long_jobs.status import LongJobStatus, Progress
from shoal.records.given_document import Given

if TYPE_CHECKING:
    from shoal.client.http.long_jobs import HttpLongJobs
    from shoal.long_jobs.long_jobs import LongJobs

#: Is called with each state of a job that is seen.
OnStatus = Callable[[LongJobStatus], object]

#: Seconds between two looks at a job that is waited for: the first of them, and the most.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 0.5

#: Seconds for which a wait goes on while Redis or the API does not answer.
MAX_AWAY_S = 60.0

#: Longest time for a change of an index's versions, which waits behind others.
CHANGE_TIMEOUT_S = 30.0


class LongWait:
    """The wait for the end of a long job, of any time without `timeout_s`: its looks at the state of the job."""

    def __init__(self, job_id: str, timeout_s: float | None, on_status: OnStatus | None):
        self._job_id = job_id
        self._timeout_s = timeout_s
        self._on_status = on_status
        self._until = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
        self._answered_at, self._pause_s = -math.inf, FIRST_PAUSE_S

    def saw(self, status: LongJobStatus) -> bool:
        """Take a state; return True if the job is done. Raises the error of a job that failed, and Cancelled."""
        self._answered_at = time.monotonic()
        if self._on_status:
            self._on_status(status)
        if error := status.failure():
            raise error
        return status.has_ended

    def missed(self, error: Unavailable) -> None:
        """Take it that there was no answer; raise the error if there was none at first, or for `MAX_AWAY_S`."""
        if time.monotonic() - self._answered_at > MAX_AWAY_S:
            raise error

    def pause_s(self) -> float:
        """Return the seconds until the next look; raise Timeout if the time is over."""
        if (left_s := self._until - time.monotonic()) <= 0:
            raise Timeout(f"job {self._job_id} is not done after {self._timeout_s:g} s: it goes on, wait again")
        pause_s, self._pause_s = self._pause_s, min(MAX_PAUSE_S, 2 * self._pause_s)
        return min(pause_s, left_s)


@dataclass(frozen=True, slots=True)
class LongHandle:
    """A long job that was submitted. Thread-safe."""

    jobs: "LongJobs | HttpLongJobs"
    id: str

    def status(self) -> str:
        """Return one of queued, running, paused, done, failed and cancelled."""
        return self.jobs.status(self.id).status

    def progress(self) -> Progress:
        """Return the progress: rows, bad rows with the first messages, fraction, rows a second and seconds left."""
        return self.jobs.status(self.id).progress

    def wait(self, timeout_s: float | None = None, on_status: OnStatus | None = None) -> dict[str, Any]:
        """Return the job's result once it is done; without `timeout_s`, wait for any time.

        `on_status` is called with each state that is seen, about twice a second. While Redis or the API does not
        answer, it is asked again for up to a minute. Raises the error of a job that failed, Cancelled, and Timeout.
        """
        wait = LongWait(self.id, timeout_s, on_status)
        while True:
            try:
                status = self.jobs.status(self.id)
            except Unavailable as error:
                wait.missed(error)
            else:
                if wait.saw(status):
                    return dict(status.result or {})
            time.sleep(wait.pause_s())

    def pause(self) -> str:
        """Stop the job for a while, without losing what is done; return its status."""
        return self.jobs.pause(self.id)

    def resume(self) -> str:
        """Let the job go on if it is paused; return its status."""
        return self.jobs.resume(self.id)

    def cancel(self) -> str:
        """End the job for good; return its status. The files that it has written stay."""
        return self.jobs.cancel(self.id)

    def delete(self) -> None:
        """Forget the job, which has ended; raises JobNotEnded if it has not.

        The files of a job that was submitted over HTTP go with it; a folder that the submitter named stays.
        """
        self.jobs.delete(self.id)


class BuildOptions(TypedDict, total=False):
    """The options of a build; those that are not given have the defaults of the long job `build_index`."""

    text_column: str | None  #: without it, the column that looks like texts
    id_column: str | None  #: without it, `id`, or the positions from 0
    on_bad: str  #: "raise": a bad row ends the build; "skip": it is left out
    publish: bool  #: False: the version is built and not served
    full: bool  #: True: texts that the version built last has are embedded again
    drop_changes_before: float | None  #: documents added and deleted before it, in Unix seconds, are forgotten
    language: str | None  #: language of the words, such as "english", or "none"; without it, it is found
    chunk_tokens: int | None  #: cut documents into chunks of at most so many tokens, each a row of the index
    chunk_overlap: int  #: most tokens that two neighbouring chunks share
    field_kinds: list[str]  #: kinds of fields that are not to be found by their values, as "year=number"
    webhook: str | None  #: URL that is told of the end
    idempotency_key: str | None  #: the same build with the same key is the same job, within a day


@dataclass(frozen=True, slots=True)
class IndexHandle(ABC):
    """An index by its name. Thread-safe.

    Documents are added and deleted while it is served. Runners build it and change its versions: the methods that
    return versions wait for a runner, at most `CHANGE_TIMEOUT_S`, and raise NotReady if none is alive. A version is a
    map with `version`, `count`, `built_at`, `model`, `source`, `size_bytes`, `is_current` and `error`; the newest comes
    first.
    """

    jobs: "LongJobs | HttpLongJobs"
    name: str

    @abstractmethod
    def add(self, documents: Iterable[Given]) -> int:
        """Add documents to the index, each in place of the one that has its id; return their number.

        A document is a map with `id`, `text` and any other fields that JSON can hold. Every worker finds it within
        2 s. At most 256 are added in one step, over HTTP 32; with more, the error of a later step says how many are
        written. Raises BadDocument, or InvalidText, that names the document; UnknownIndex, NotReady, TooLarge, and
        TooManyChanges once 10,000 documents are added or deleted that no build has folded in.
        """

    @abstractmethod
    def delete(self, ids: Iterable[str]) -> int:
        """Delete the documents that have these ids; return the number of ids, some of which may have no document.

        At most 1,000 are deleted in one step. Raises InvalidRequest that names the id, and what `add` raises.
        """

    def build(self, source: File | Iterable[Item], **options: Unpack[BuildOptions]) -> LongHandle:
        """Submit a build of a new version from a file of documents, and return at once.

        `source` is the path of a file, a URL, which the runner reads, or a `ServerFile`. Over HTTP, a file is uploaded,
        and so are documents, as dicts; a client that reaches Redis names a file that the runner has below its roots.
        The options are fields of `BuildOptions`. Bad rows end the build, or are left out with `on_bad="skip"`. Texts
        that the version built last has are not embedded again, unless `full` is true. The new version is published,
        unless `publish` is false.
        """
        return LongHandle(self.jobs, self._build(source, options))

    def versions(self) -> list[dict[str, Any]]:
        """Return the versions of the index."""
        return self._manage("list")

    def publish(self, version: str) -> list[dict[str, Any]]:
        """Make a version the current one, which searches then read; return the versions."""
        return self._manage("publish", version)

    def rollback(self) -> list[dict[str, Any]]:
        """Make the version that was published before the current one current again; return the versions."""
        return self._manage("rollback")

    def delete_version(self, version: str) -> list[dict[str, Any]]:
        """Delete a version that is not the current one; return the versions that are left."""
        return self._manage("delete", version)

    @abstractmethod
    def _build(self, source: File | Iterable[Item], options: BuildOptions) -> str:
        """Submit a build; return the id of the job. Raises InvalidRequest for an option that there is not."""

    @abstractmethod
    def _manage(self, action: str, version: str | None = None) -> list[dict[str, Any]]:
        """Let a runner do the action; return the versions after it."""
