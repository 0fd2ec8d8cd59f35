"""The handle of an index for programs without an event loop, whichever way a client reaches it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, Unpack

from shoal.client.long_handle import LongHandle
from shoal.client.long_job_calls import LongJobCalls
from shoal.client.source_file import File, Item
from shoal.contract.checks import check_known
from shoal.records.given_document import Given

#: Longest time for a change of an index's versions, which waits behind others.
CHANGE_TIMEOUT_S = 30.0


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


class IndexCalls(Protocol):
    """The calls for an index, through Redis or over HTTP; each blocks the thread until it is answered."""

    @property
    def jobs(self) -> LongJobCalls:
        """The calls for its long jobs."""

    @property
    def name(self) -> str:
        """The name of the index."""

    def add(self, documents: Iterable[Given]) -> int:
        """Add documents; return their number."""

    def delete(self, ids: Iterable[str]) -> int:
        """Delete the documents with these ids; return the number of ids."""

    def build(self, source: File | Iterable[Item], options: BuildOptions) -> str:
        """Submit a build; return the id of the job."""

    def manage(self, action: str, version: str | None = None) -> list[dict[str, Any]]:
        """List, publish, roll back or delete versions; return those that there are then."""


@dataclass(frozen=True, slots=True)
class IndexHandle:
    """An index by its name. Thread-safe.

    Documents are added and deleted while it is served. Runners build it and change its versions: the methods that
    return versions wait for a runner, at most `CHANGE_TIMEOUT_S`, and raise NotReady if none is alive. A version is a
    map with `version`, `count`, `built_at`, `model`, `source`, `size_bytes`, `is_current` and `error`; the newest comes
    first.
    """

    calls: IndexCalls

    def add(self, documents: Iterable[Given]) -> int:
        """Add documents to the index, each in place of the one that has its id; return their number.

        A document is a map with `id`, `text` and any other fields that JSON can hold. Every worker finds it within
        2 s. At most 256 are added in one step, over HTTP 32; with more, the error of a later step says how many are
        written. Raises BadDocument, or InvalidText, that names the document; UnknownIndex, NotReady, TooLarge, and
        TooManyChanges once 10,000 documents are added or deleted that no build has folded in.
        """
        return self.calls.add(documents)

    def delete(self, ids: Iterable[str]) -> int:
        """Delete the documents that have these ids; return the number of ids, some of which may have no document.

        At most 1,000 are deleted in one step. Raises InvalidRequest that names the id, and what `add` raises.
        """
        return self.calls.delete(ids)

    def build(self, source: File | Iterable[Item], **options: Unpack[BuildOptions]) -> LongHandle:
        """Submit a build of a new version from a file of documents, and return at once.

        `source` is the path of a file, a URL, which the runner reads, or a `ServerFile`. Over HTTP, a file is uploaded,
        and so are documents, as dicts; a client that reaches Redis names a file that the runner has below its roots.
        The options are fields of `BuildOptions`. Bad rows end the build, or are left out with `on_bad="skip"`. Texts
        that the version built last has are not embedded again, unless `full` is true. The new version is published,
        unless `publish` is false.
        """
        return LongHandle(self.calls.jobs, self.calls.build(source, checked(options)))

    def versions(self) -> list[dict[str, Any]]:
        """Return the versions of the index."""
        return self.calls.manage("list")

    def publish(self, version: str) -> list[dict[str, Any]]:
        """Make a version the current one, which searches then read; return the versions."""
        return self.calls.manage("publish", version)

    def rollback(self) -> list[dict[str, Any]]:
        """Make the version that was published before the current one current again; return the versions."""
        return self.calls.manage("rollback")

    def delete_version(self, version: str) -> list[dict[str, Any]]:
        """Delete a version that is not the current one; return the versions that are left."""
        return self.calls.manage("delete", version)


def checked(options: BuildOptions) -> BuildOptions:
    """Return the options; raise InvalidRequest for one that there is not."""
    check_known("option", options, BuildOptions.__annotations__)
    return options
