"""The shapes of the pool's state (its lanes, workers and recent jobs) and of dead letters."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from shoal.contract.replies import Status
from shoal_api.schema.body import Name
from shoal_api.schema.long_jobs import LongJob
from shoal_api.schema.responses import Timings


class PoolLane(BaseModel):
    """A lane: its jobs, and their waits. A wait is null if no job left the lane in the last minute."""

    lane: str
    num_jobs: int = Field(description="Jobs that are not answered yet")
    num_texts: int = Field(description="Texts of these jobs")
    num_bytes: int = Field(description="Size of these jobs, in bytes")
    oldest_age_s: float = Field(description="Seconds since the first of these jobs was put")
    wait_p50_s: float | None = Field(description="Median wait of the last minute's jobs, in seconds")
    wait_p95_s: float | None = Field(description="95th percentile of these waits, in seconds")
    wait_max_s: float | None = Field(description="Longest of these waits, in seconds")


class PoolWorker(BaseModel):
    """A worker, from its last heartbeats, which are 5 s apart. A field is null if they lack it."""

    id: str
    state: str = Field(description="`ready`, `stalled`, or `gone`: not alive, for 10 minutes at most")
    model: str | None
    engine: str | None
    precision: str | None
    threads: int | None
    host: str | None
    pid: int | None
    texts_per_s: float | None = Field(description="Texts answered in a second while it has jobs")
    memory_bytes: int | None = Field(description="Memory of its process")
    jobs_per_s: float | None = Field(description="Jobs that it answered in a second")
    computed_texts_per_s: float | None = Field(description="Texts that it computed in a second")
    busy: float | None = Field(description="Share of time during which its engine computed")
    batch_fill: float | None = Field(description="Mean tokens of a pass in the last minute, as a share of the most")
    written_at: float | None = Field(description="Time of its last heartbeat, in Unix seconds")
    seen_at: float = Field(description="Time when it was alive last, in Unix seconds")


class RecentJob(BaseModel):
    """A job that was answered. A field is null if the job could not be read, or was not computed."""

    id: str | None
    op: str | None
    lane: str
    client: str = Field(description="Name of the key, or address, that it came from; empty if unknown")
    num_texts: int | None
    num_tokens: int | None = Field(description="Tokens that were computed")
    num_cached: int | None = Field(description="Texts found in the cache")
    status: Status
    error: str | None = Field(description="Code of the error")
    ended_at: float = Field(description="Time when it was answered, in Unix seconds")
    total_s: float = Field(description="Seconds from its arrival in Redis to its answer")
    worker: str
    timings: Timings | dict[str, float]


class Rates(BaseModel):
    """The rates of all workers together, from each worker's last two heartbeats. A rate is null if nothing was done."""

    num_workers: int
    jobs_per_s: float | None = Field(description="Jobs answered in a second")
    failed_per_s: float | None = Field(description="Jobs answered with an error")
    computed_texts_per_s: float | None = Field(description="Texts computed")
    cached_texts_per_s: float | None = Field(description="Texts found in the cache, by workers or this API")
    tokens_per_s: float | None = Field(description="Tokens computed")
    busy: float | None = Field(description="Share of time during which engines computed")
    cache_hit_rate: float | None = Field(description="Share of texts found in the cache, in the last minute")
    queue_s: float | None = Field(description="Mean time of a job in its lane")
    tokenize_s: float | None
    encode_s: float | None
    search_s: float | None


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
    """The present state of the pool. Times are by Redis's clock."""

    time: float = Field(description="Time of the measurement, in Unix seconds")
    every_s: float = Field(description="Seconds from one measurement to the next")
    is_admin: bool = Field(description="True if all jobs and dead letters are shown")
    lanes: list[PoolLane]
    workers: list[PoolWorker]
    num_dead: int = Field(description="Number of dead letters")
    recent: list[RecentJob] = Field(description="Jobs that were answered, the newest first")
    dead: list[DeadLetterBrief] | None = Field(description="The newest dead letters; null for a key of a user")
    long_jobs: list[LongJob] = Field(description="The newest long jobs")
    rates: Rates
