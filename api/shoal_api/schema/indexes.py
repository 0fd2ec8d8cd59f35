"""The shapes of indexes: their documents, builds and versions."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from shoal.contract.languages import Language
from shoal_api.schema.body import Body, ChunkOverlap, ChunkTokens, Name, Path, UnixTime, example
from shoal_api.schema.long_jobs import NAME, SOURCE, SourceFields

_ID = Annotated[Any, WithJsonSchema({"type": "string", "minLength": 1})]

#: A document. This schema is for the description only, because `IndexWriter` checks documents for all clients.
_DOCUMENT = WithJsonSchema(
    {"type": "object", "description": "An object with an `id`, a `text` and other fields, none of them called `score`"}
)


class DocumentsBody(Body):
    """Documents to add to an index."""

    model_config = example(documents=[{"id": "storm-7", "text": "Storm closes ports in Brittany", "topic": "weather"}])
    documents: list[Annotated[Any, _DOCUMENT]] = Field(
        min_length=1,
        description="At most 1,000. With their vectors, at most 1 MiB: some 600 short documents of 384 dimensions",
    )


class IdsBody(Body):
    """Ids of documents to delete from an index."""

    model_config = example(ids=["storm-7"])
    ids: list[_ID] = Field(min_length=1, description="At most 1,000; an id that no document has is no error")


class _BuildFields(SourceFields):
    """The fields of a build, except its source."""

    on_bad: Literal["raise", "skip"] = Field("raise", description="Bad rows: end the build, or leave them out")
    publish: bool = Field(True, description="Serve the new version when it is built")
    full: bool = Field(False, description="Embed all texts, also texts that the last version has")
    drop_changes_before: UnixTime | None = Field(
        None, description="Forget documents added and deleted before this time, in Unix seconds"
    )
    language: Language | None = Field(
        None, description="Language of the words; null: detected; learned: the model weighs the words"
    )
    chunk_tokens: ChunkTokens | None = Field(
        None, description="Cut documents into chunks of at most this many tokens, each a row of the index"
    )
    chunk_overlap: ChunkOverlap = Field(0, description="Maximum number of tokens that neighbouring chunks share")
    field_kinds: list[Name] = Field(
        [],
        description='Kinds of fields, such as "year=number", instead of the kinds found from their values',
        max_length=256,
        fail_fast=True,
    )
    token_vectors: bool = Field(
        False, description="Keep the token vectors of a late-interaction reranker, so that second stages read no texts"
    )

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the long job, without its source."""
        return {name: getattr(self, name) for name in _BuildFields.model_fields}


class BuildBody(_BuildFields):
    """A file to build a version of an index from."""

    model_config = example(source="news.jsonl")
    source: Path | None = SOURCE


class BuildQuery(_BuildFields):
    """The query parameters of a build whose file is sent as the body of the request."""

    model_config = ConfigDict(strict=False)
    name: Name | None = NAME


class IndexPath(BaseModel):
    """The part of a route that names an index."""

    index: Name = Field(description="Name of the index")


class VersionPath(IndexPath):
    """The parts of a route that name a version of an index."""

    version: str = Field(description="Version, as named in the list of versions", max_length=128)


class PublishBody(Body):
    """The version to serve."""

    model_config = example(version="20261122T030000Z-4f8ba4")
    version: str = Field(description="Version, as named in the list of versions", min_length=1, max_length=128)
