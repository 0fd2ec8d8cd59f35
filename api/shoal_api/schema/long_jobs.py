"""The shapes of requests for long jobs: bodies, paths and queries."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal.contract.options import OPTION_DEFAULTS
from shoal_api.schema.body import Body, ChunkOverlap, ChunkTokens, Dimensions, Name, Path, example
from shoal_api.schema.requests import TextOptions


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
