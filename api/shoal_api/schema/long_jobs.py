"""The shapes of long jobs and of builds and versions of indexes: bodies, paths, queries and responses."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from shoal.contract.languages import Language
from shoal.contract.options import OPTION_DEFAULTS
from shoal_api.schema import headers
from shoal_api.schema.body import Body
from shoal_api.schema.bounds import ChunkOverlap, ChunkTokens, Dimensions, Name, Path, UnixTime
from shoal_api.schema.requests import TextOptions
from shoal_api.schema.responses import ANY_FORMAT, JobResult, JobState, JobStatus, described

#: Most jobs of a list.
MAX_LISTED = 1_000

_ID = "05994f8ba4d8bac6959289ef"


class _SourceFields(Body):
    """The columns of a source, and the URL to tell of the end of its job."""

    text_column: Name | None = Field(None, description="Column with the texts; null: the one that looks like it")
    id_column: Name | None = Field(None, description="Column with the ids; null: `id`, or the positions from 0")
    webhook: Path | None = Field(None, description="URL that is sent the status of the job when it has ended")


class _BulkFields(_SourceFields, TextOptions):
    """The fields of a bulk embedding beside its source."""

    format: Literal["safetensors", "npy", "parquet", "jsonl"] = Field(
        "safetensors", description="Format of the files of the result"
    )
    normalize: bool = Field(OPTION_DEFAULTS["normalize"], description="Scale vectors to length 1")
    dimensions: Dimensions | None = Field(None, description="Keep this many numbers of each vector")
    chunk_tokens: ChunkTokens | None = Field(
        None, description="Cut no text off: make its vector of chunks of at most so many tokens"
    )
    chunk_overlap: ChunkOverlap = Field(0, description="Most tokens that two neighbours share")

    def options(self) -> dict[str, Any]:
        """Return the options of the embedding that were given."""
        return {name: getattr(self, name) for name in self.model_fields_set & OPTION_DEFAULTS.keys()}


class _BuildFields(_SourceFields):
    """The fields of a build beside its source."""

    on_bad: Literal["raise", "skip"] = Field("raise", description="Bad rows: end the build, or leave them out")
    publish: bool = Field(True, description="Serve the new version when it is built")
    full: bool = Field(False, description="Embed all texts, also those that the version which was built last has")
    drop_changes_before: UnixTime | None = Field(
        None, description="Forget documents added and deleted before this time, in Unix seconds"
    )
    language: Language | None = Field(None, description="Language of the words; without it, it is found")
    chunk_tokens: ChunkTokens | None = Field(
        None, description="Cut documents into chunks of at most so many tokens, each a row of the index"
    )
    chunk_overlap: ChunkOverlap = Field(0, description="Most tokens that two neighbouring chunks share")
    field_kinds: list[Name] = Field(
        [],
        description='Kinds of fields that are not to be found by their values, as "year=number"',
        max_length=256,
        fail_fast=True,
    )

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the long job, without its source."""
        return {name: getattr(self, name) for name in _BuildFields.model_fields if name != "webhook"}


_SOURCE = Field(
    None,
    description="File of records: a path below one of the roots, or a URL; required unless the file is the body",
    min_length=1,
)
_NAME = Field(None, description="Name of the file that is the body; without it the body is JSON")


class BulkBody(_BulkFields):
    """A file to embed."""

    model_config = ConfigDict(json_schema_extra={"example": {"source": "news.jsonl", "text_column": "headline"}})
    source: Path | None = _SOURCE


class BulkQuery(_BulkFields):
    """The fields of a bulk embedding whose file is the body."""

    model_config = ConfigDict(strict=False)
    name: Name | None = _NAME


class BuildBody(_BuildFields):
    """A file to build a version of an index from."""

    model_config = ConfigDict(json_schema_extra={"example": {"source": "news.jsonl"}})
    source: Path | None = _SOURCE


class BuildQuery(_BuildFields):
    """The fields of a build whose file is the body."""

    model_config = ConfigDict(strict=False)
    name: Name | None = _NAME


class IndexPath(BaseModel):
    """The path of an index."""

    index: Name = Field(description="Name of the index")


class VersionPath(IndexPath):
    """The path of a version of an index."""

    version: str = Field(description="Version, as the list of versions has it", max_length=128)


class PublishBody(Body):
    """The version to serve."""

    model_config = ConfigDict(json_schema_extra={"example": {"version": "20261122T030000Z-4f8ba4"}})
    version: str = Field(description="Version, as the list of versions has it", min_length=1, max_length=128)


class FilePath(BaseModel):
    """The path of a file of a result."""

    id: Name = Field(description="Id that the submit answered")
    name: Path = Field(description="Name of the file, as `manifest.json` has it")


class ListQuery(BaseModel):
    """The number of long jobs to list."""

    limit: int = Field(100, ge=1, le=MAX_LISTED, description="Most to list, the newest first")


class ProgressBody(BaseModel):
    """The part of a long job that is done."""

    rows: int = Field(description="Rows of the source that were read")
    num_bad: int = Field(description="Rows that were left out")
    first_bad: list[str] = Field(description="What is wrong with the first of them")
    fraction: float | None = Field(description="Part of the source that is done, from 0 to 1")
    step: str = Field(description="The work under way")
    rows_per_s: float | None
    eta_s: float | None = Field(description="Seconds left")


class LongJobError(BaseModel):
    """The error with which a long job ended, or was last tried."""

    code: str
    message: str


class WebhookState(BaseModel):
    """The outcome of the webhook of a long job."""

    url: str = Field(description="URL without its query")
    status: Literal["pending", "sent", "failed"]
    answer: int | None = Field(description="Status of the receiver's answer, once it is sent")
    error: LongJobError | None = Field(description="Why the last try failed")


_LONG_JOB = {
    "id": _ID,
    "kind": "embed_file",
    "status": "running",
    "arguments": {"source": "news.jsonl", "out": "jobs/2f6d1c8e03b7/0b6c7f2a9d1e-05994f8ba4d8bac6959289ef/vectors"},
    "submitted_at": 1790000000.5,
    "started_at": 1790000000.7,
    "ended_at": None,
    "progress": {
        "rows": 31744,
        "num_bad": 1,
        "first_bad": ["news.jsonl, line 17: the text is empty"],
        "fraction": 0.43,
        "step": "embedding",
        "rows_per_s": 912.5,
        "eta_s": 46.7,
    },
    "result": None,
    "error": None,
    "worker": "5d0c1f7be2a4",
    "webhook": None,
    "note": None,
}


class LongJob(BaseModel):
    """A long job. Times are in Unix seconds."""

    model_config = described(example=_LONG_JOB)
    id: str
    kind: str = Field(description="`embed_file`, `build_index` or `manage_index`")
    status: Literal["queued", "running", "paused", "done", "failed", "cancelled"]
    arguments: dict[str, Any]
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    progress: ProgressBody
    result: Any = Field(description="What it did, once it is done")
    error: LongJobError | None
    worker: str = Field(description="A digest of the name of the runner that has it, or had it last")
    webhook: WebhookState | None = Field(description="What became of the webhook; null in lists")
    note: str | None = Field(description="Why it does not begin, if no runner is alive")


class LongJobState(BaseModel):
    """A long job and the status it now has."""

    id: str
    status: Literal["queued", "running", "paused", "done", "failed", "cancelled"]
    note: str | None = Field(None, description="Why it does not begin, if no runner is alive")


class LongJobSubmitted(LongJobState):
    """A long job that was put."""

    model_config = described(
        answer_headers={"Location": headers.SUBMITTED["Location"]},
        example={"id": _ID, "status": "queued", "note": None},
    )


class LongJobs(BaseModel):
    """The newest long jobs, without their results."""

    jobs: list[LongJob]


class AnyJobStatus(RootModel[JobStatus | LongJob]):
    """The status of a job or of a long job."""


class AnyJobState(RootModel[JobState | LongJobState]):
    """A job or a long job and the status it now has."""


class DeletedJob(BaseModel):
    """A long job that is forgotten."""

    id: str
    status: Literal["deleted"]


class AnyDeletedJob(RootModel[DeletedJob | JobState]):
    """A long job that is forgotten, or a job and the status it now has."""


class AnyJobResult(RootModel[JobResult | LongJob]):
    """The result of a job, or a long job that is done."""

    model_config = described(**ANY_FORMAT)


class VersionInfo(BaseModel):
    """A version of an index; null where its files do not tell."""

    version: str
    is_current: bool = Field(description="True for the version that is served")
    count: int | None = Field(description="Number of documents, or of their chunks")
    num_documents: int | None = Field(description="Number of documents")
    built_at: str | None
    source: str | None = Field(description="File that it was built from")
    model: str | None
    digest: str | None = Field(description="Digest of the model")
    num_embedded: int | None = Field(description="Documents that were embedded; the rest was taken over")
    num_bad: int | None = Field(description="Rows of the file that were left out")
    size_bytes: int
    error: str | None = Field(description="Why it cannot be served")


class Versions(BaseModel):
    """The versions of an index, the newest first, and the one that is served."""

    name: str
    current: str | None
    versions: list[VersionInfo]
