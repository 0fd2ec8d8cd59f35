"""A lane: its limits, its load, the jobs to put into it, and the errors of a full lane."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple, Self

from shoal.contract import traceparent
from shoal.contract.jobs import Job, check_lane
from shoal.errors import InvalidRequest, Overloaded, TooLarge
from shoal.settings import DEFAULTS, Settings

#: Size limit of all jobs in a put, and so of one job, in bytes. Redis serves no other client while it copies them.
MAX_PUT_BYTES = 32 * 2**20

#: Largest `retry_after_s` of a refusal.
MAX_RETRY_S = 60

#: Size limit of a client's name, in bytes. The name is kept with each of the client's jobs.
MAX_CLIENT_BYTES = 256

#: Largest numbers of jobs and of bytes that are joined for one run of the script. During the run of some 4 ms, Redis
#: serves no other client.
MAX_JOINED_JOBS, MAX_JOINED_BYTES = 256, 2**18

#: Largest number of puts of a client for a lane that are made in one round trip.
MAX_PUTS_OF_CLIENT = 16


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """The limits of a lane's unanswered jobs, their texts and bytes, and of the bytes of all lanes' unread results."""

    max_jobs: int = DEFAULTS.max_backlog
    max_texts: int = DEFAULTS.max_backlog_texts
    max_bytes: int = DEFAULTS.max_backlog_mb * 2**20
    max_unread_bytes: int = DEFAULTS.max_result_mb * 2**20

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the limits in the settings."""
        return cls(
            settings.max_backlog,
            settings.max_backlog_texts,
            settings.max_backlog_mb * 2**20,
            settings.max_result_mb * 2**20,
        )

    def to_map(self) -> dict[str, int]:
        """Return the limits in the form in which workers announce them to all producers."""
        return asdict(self) | {"max_put_bytes": MAX_PUT_BYTES}


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """The numbers of a lane's unanswered jobs, of their texts and bytes, and the time since the oldest job was put."""

    num_jobs: int
    num_texts: int
    num_bytes: int
    oldest_age_s: float = 0.0

    def fill(self, limits: LaneLimits) -> float:
        """Return the largest of three shares: the jobs, the texts and the bytes, each divided by its limit."""
        return max(
            self.num_jobs / limits.max_jobs, self.num_texts / limits.max_texts, self.num_bytes / limits.max_bytes
        )


class UnreadLoad(NamedTuple):
    """The number of unread results, and the bytes of unread results and idempotency keys."""

    num_results: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PackedJobs:
    """Jobs of one client for one lane, with their packed bytes.

    Replies go to the address `reply_to`; without it, each reply becomes the result of its job. `once` has an
    idempotency `key`, the `owner` of the key and the `digest` of the job.
    """

    lane: str
    jobs: Sequence[Job]
    data: Sequence[bytes]
    num_bytes: int
    reply_to: str | None = None
    client: str = ""
    once: Mapping[str, str] | None = None

    @classmethod
    def pack(
        cls,
        lane: str,
        jobs: Sequence[Job],
        reply_to: str | None = None,
        client: str = "",
        timeout_s: float | None = None,
    ) -> Self:
        """Return the packed jobs, with the current trace.

        Raises InvalidText, TooLarge, and InvalidRequest for an unknown lane or a long `client`.
        """
        check_lane(lane)
        if (num_bytes := len(client.encode())) > MAX_CLIENT_BYTES:
            raise InvalidRequest(f"the name of the client has {num_bytes:,} bytes, and at most {MAX_CLIENT_BYTES} fit")
        trace = traceparent.current()
        data = [job.pack(trace, timeout_s) for job in jobs]
        if (num_bytes := sum(map(len, data))) > MAX_PUT_BYTES:
            words = f"{num_bytes:,} bytes at a time exceed the limit of a lane, {MAX_PUT_BYTES:,}"
            raise TooLarge(f"{words}: split the list")
        return cls(lane, jobs, data, num_bytes, reply_to, client)

    @classmethod
    def join(cls, puts: Sequence[Self]) -> Self:
        """Return one put with the jobs of all puts in a group of `take_groups`."""
        jobs = [job for put in puts for job in put.jobs]
        data = [packed for put in puts for packed in put.data]
        return replace(puts[0], jobs=jobs, data=data, num_bytes=sum(put.num_bytes for put in puts))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the script `put`."""
        jobs = [
            {"id": job.id, "job": data, "texts": job.num_lane_texts, "reply_to": self.reply_to or job.reply_to}
            for job, data in zip(self.jobs, self.data, strict=True)
        ]
        arguments: dict[str, Any] = {"lane": self.lane, "client": self.client, "jobs": jobs}
        return arguments if self.once is None else arguments | {"once": self.once}


def take_groups(puts: dict[tuple[str, str], list[PackedJobs]]) -> list[list[PackedJobs]]:
    """Return the next group of puts for each client and lane, the keys of `puts`, and remove these puts from `puts`.

    One run of the script makes the puts of a group. A client with few puts goes first and does not wait for others.
    """
    groups = []
    for key, waiting in sorted(puts.items(), key=lambda pair: len(pair[1])):
        first = waiting[:MAX_PUTS_OF_CLIENT]
        nums_jobs, sizes = accumulate(len(put.jobs) for put in first), accumulate(put.num_bytes for put in first)
        sums = zip(nums_jobs, sizes, strict=True)
        num = max(1, sum(jobs <= MAX_JOINED_JOBS and size <= MAX_JOINED_BYTES for jobs, size in sums))
        groups.append(waiting[:num])
        del waiting[:num]
        if not waiting:
            del puts[key]
    return groups


def num_query_bytes(job: Job) -> int:
    """Return the bytes of a job's texts, and of its queries once for each part; 0 for a small job. Raises TooLarge."""
    query = "".join(job.queries.values())
    num_parts = -(-len(job.texts) // job.texts_per_job)
    num_chars = num_parts * len(query) + sum(map(len, job.texts))
    if num_chars <= MAX_PUT_BYTES // 64:  # no need to count bytes: a character has at most 4 bytes
        return 0
    sizes = [len(text.encode(errors="surrogatepass")) for text in (query, *job.texts)]
    if (total := sum(sizes) + (num_parts - 1) * sizes[0]) > MAX_PUT_BYTES:
        raise TooLarge(
            f"the texts have {sum(sizes[1:]):,} bytes and the query has {sizes[0]:,}, in each of {num_parts:,} jobs: "
            f"{total:,} bytes at a time exceed the limit of a lane, {MAX_PUT_BYTES:,}: split the list, or shorten the "
            "query"
        )
    return total


def too_large(put: PackedJobs, refusal: Mapping[str, Any]) -> TooLarge:
    """Return the error for a put for which even an empty lane has no room; `refusal` is the script's answer."""
    exceeded = refusal["exceeded"].decode()
    setting = {"jobs": "SHOAL_MAX_BACKLOG", "texts": "SHOAL_MAX_BACKLOG_TEXTS", "bytes": "SHOAL_MAX_BACKLOG_MB"}[
        exceeded
    ]
    is_of_chunks = exceeded == "texts" and any(job.options.chunk_tokens is not None for job in put.jobs)
    chunks = ", chunks counted," if is_of_chunks else ""
    remedy = "raise chunk_tokens, or send fewer or shorter texts at a time" if is_of_chunks else "split the list"
    return TooLarge(
        f"{refusal['asked']:,} {exceeded}{chunks} at a time exceed the limit of the {put.lane} lane, "
        f"{refusal['most']:,} ({setting}): {remedy}"
    )


def overloaded(lane: str, load: Mapping[str, Any], texts_per_s: float) -> Overloaded:
    """Return the error for a put for which a lane has no room now; `load` is the script's answer.

    `texts_per_s` is the speed of all workers together, 0 without workers.
    """
    held = load[load["exceeded"].decode()]
    excess = max(0.0, load["own"] + load["asked"] - load["most"]) / max(held, 1)
    wait_s = excess * load["texts"] / texts_per_s if texts_per_s else MAX_RETRY_S
    retry_after_s = max(1, min(MAX_RETRY_S, math.ceil(wait_s)))
    return Overloaded(
        f"no room in the {lane} lane, which holds {load['jobs']:,} unanswered jobs with {load['texts']:,} texts "
        f"and {load['bytes']:,} bytes: try again in {retry_after_s} s, or send less at a time",
        retry_after_s,
    )


def too_much_unread(unread: Mapping[str, Any]) -> Overloaded:
    """Return the error for a put whose client has too many unread bytes; `unread` is the script's answer."""
    return Overloaded(
        f"the client has {unread['client_bytes']:,} bytes of results that were not read and of idempotency keys, and "
        f"may have less than {unread['most']:,} (SHOAL_MAX_RESULT_MB): fetch results, then submit again",
        MAX_RETRY_S,
    )
