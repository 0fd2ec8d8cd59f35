"""The shapes of long jobs: bodies, paths, queries and responses."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from shoal.contract.options import OPTION_DEFAULTS
from shoal.long_jobs.status import Status
from shoal_api.schema.body import Body, ChunkOverlap, ChunkTokens, Dimensions, Name, Path, example
from shoal_api.schema.requests import TextOptions
from shoal_api.schema.responses import ANY_FORMAT, SUBMITTED_HEADERS, JobResult, JobState, JobStatus, described


class SourceFields(Body):
    """The columns of a source."""

    text_column: Name | None = Field(None, description="Column with the texts; null: the column that looks like texts")
    id_column: Name | None = Field(None, description="Column of the ids; null: `id`, else `_id`, else positions from 0")


class _BulkFields(SourceFields, TextOptions):
    """The fields of a bulk embedding, except its source."""

    format: Literal["safetensors", "npy", "parquet", "jsonl"] = Field(
        "safetensors", description="Format of the files of the result"
    )
    normalize: bool = Field(OPTION_DEFAULTS["normalize"], description="Scale vectors to length 1")
    dimensions: Dimensions | None = Field(None, description="Keep this many numbers of each vector")
    chunk_tokens: ChunkTokens | None = Field(
        None, description="Read all of each text: its vector is made from chunks of at most this many tokens"
    )
    chunk_overlap: ChunkOverlap = Field(0, description="Maximum number of tokens that neighbouring chunks share")

    def options(self) -> dict[str, Any]:
        """Return the options of the embedding that the request contains."""
        return {name: getattr(self, name) for name in self.model_fields_set & OPTION_DEFAULTS.keys()}


SOURCE = Field(
    None,
    description="File of records: a path below one of the roots; required unless the file is the body",
    min_length=1,
)
NAME = Field(None, description="Name of the file that is the body; without it the body is JSON")


class BulkBody(_BulkFields):
    """A file to embed."""

    model_config = example(source="news.jsonl", text_column="headline")
    source: Path | None = SOURCE


class BulkQuery(_BulkFields):
    """The query parameters of a bulk embedding whose file is sent as the body of the request."""

    model_config = ConfigDict(strict=False)
    name: Name | None = NAME


class FilePath(BaseModel):
    """The parts of a route that name a file of a result."""

    id: Name = Field(description="Id that the submit returned")
    name: Path = Field(description="Name of a file in `manifest.json`")


_LONG_JOB = {
    "id": "05994f8ba4d8bac6959289ef",
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
    "note": None,
}


class LongJob(BaseModel):
    """A long job. Times are in Unix seconds. docs/http.md describes its `progress` and `error`."""

    model_config = described(example=_LONG_JOB)
    id: str
    kind: str = Field(description="`embed_file`, `build_index` or `manage_index`")
    status: Status
    arguments: dict[str, Any]
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    progress: dict[str, Any]
    result: Any = Field(description="The result of the job, once it is done")
    error: dict[str, str] | None
    worker: str = Field(description="A digest of the name of the runner that has the job, or had it last")
    note: str | None = Field(description="Why the job does not begin, if no runner is alive")


class LongJobState(BaseModel):
    """A long job and its present status."""

    id: str
    status: Status
    note: str | None = Field(None, description="Why the job does not begin, if no runner is alive")


class LongJobSubmitted(LongJobState):
    """A long job that was submitted."""

    model_config = described(
        answer_headers=SUBMITTED_HEADERS,
        example={"id": "05994f8ba4d8bac6959289ef", "status": "queued", "note": None},
    )


class LongJobs(BaseModel):
    """The newest long jobs, without their results."""

    jobs: list[LongJob]


class AnyJobStatus(RootModel[JobStatus | LongJob]):
    """The status of a job or of a long job."""


class AnyJobState(RootModel[JobState | LongJobState]):
    """A job or a long job, and its present status."""


class DeletedJob(BaseModel):
    """A long job that was deleted."""

    id: str
    status: Literal["deleted"]


class AnyDeletedJob(RootModel[DeletedJob | JobState]):
    """A long job that was deleted, or a job and its present status."""


class AnyJobResult(RootModel[JobResult | LongJob]):
    """The result of a job, or a long job that is done."""

    model_config = described(**ANY_FORMAT)
