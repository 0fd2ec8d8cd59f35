"""The shapes of the pool's state and of dead letters."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from shoal_api.schema.body import Name
from shoal_api.schema.long_jobs import LongJob


class DeadLetterPath(BaseModel):
    """The part of a route that names a dead letter."""

    id: Name = Field(description="Id from the list of dead letters")


class DeadLetterBrief(BaseModel):
    """A job that could not be answered. A field is null if the beginning of the job cannot be read."""

    id: str = Field(description="Id of the dead letter")
    time: float = Field(description="Time when the job was given up, in Unix seconds")
    job_id: str | None
    op: str | None
    num_texts: int | None
    lane: str
    deliveries: int = Field(description="Number of deliveries to a worker")
    worker: str = Field(description="Worker to which it was delivered last")
    reason: str


class DeadLetterBody(DeadLetterBrief):
    """A dead letter with its job."""

    traceback: str = Field(description="Traceback of the worker, if it could still write one")
    asked: dict[str, Any] | None = Field(description="The texts and options of the job")
    size_bytes: int
    bytes: str | None = Field(description="First 1,000 bytes in hex, of a job that cannot be read")


class DeadLetterList(BaseModel):
    """The newest dead letters, and the number of all dead letters."""

    count: int
    dead: list[DeadLetterBrief]


class Dropped(BaseModel):
    """A dead letter that was deleted."""

    id: str
    dropped: Literal[True]


class PoolBody(BaseModel):
    """The present state of the pool; docs/http.md has all fields. Times are by Redis's clock."""

    time: float = Field(description="Time of the measurement, in Unix seconds")
    every_s: float = Field(description="Seconds from one measurement to the next")
    is_admin: bool = Field(description="True if all jobs and dead letters are shown")
    lanes: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    num_dead: int = Field(description="Number of dead letters")
    recent: list[dict[str, Any]] = Field(description="Jobs that were answered, the newest first")
    dead: list[DeadLetterBrief] | None = Field(description="The newest dead letters; null for a key of a user")
    long_jobs: list[LongJob] = Field(description="The newest long jobs")
    rates: dict[str, float | None] = Field(description="Rates of all workers together; null if nothing was done")
