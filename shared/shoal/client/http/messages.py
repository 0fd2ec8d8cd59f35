"""The bodies of requests to the API and the replies in its answers: how jobs are written, split and read over HTTP."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.contract.jobs import MAX_REQUEST_TEXTS, Job
from shoal.contract.replies import CHUNK_COLUMNS, Reply
from shoal.errors import MalformedJob
from shoal.operations import Search

#: Most bytes of texts in one request, if the API takes as much. Longer lists are split.
MAX_REQUEST_BYTES = 4 * 2**20

#: Bytes of a request for all but its texts, and for the head of each text.
_BYTES_OF_OPTIONS, _BYTES_OF_A_HEAD = 4_096, 5

#: The names in `Reply` of the fields of an answer that have others there.
_NAMES = {"embeddings": "vectors", "results": "hits"}


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The most texts, and bytes of texts, that go into one request."""

    max_texts: int
    max_bytes: int

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> Self:
        """Return the limits of the API that describes itself so; raise MalformedJob for a description without them."""
        try:
            limits, dimension = info["limits"], int(info["dimension"] or 1)  # null while no worker is ready
            max_vectors = int(limits["max_response_mb"]) * 2**20 // (4 * max(1, dimension))
            max_texts = min(MAX_REQUEST_TEXTS, int(limits["max_backlog_texts"]), max_vectors)
            max_bytes = min(MAX_REQUEST_BYTES, int(limits["max_request_bytes"]) - _BYTES_OF_OPTIONS)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise MalformedJob(f"/info has no limits that can be read ({error!s:.200}): check the URL") from error
        return cls(max(1, max_texts), max_bytes)

    def split(self, job: Job) -> list[Job]:
        """Return jobs that each go into one request, and together ask the same."""
        max_texts = min(self.max_texts, job.texts_per_request)
        sizes = (len(text.encode(errors="surrogatepass")) + _BYTES_OF_A_HEAD for text in job.texts)
        return list(job.cut(max_texts, self.max_bytes, sizes))


def reply_of(job_id: str, values: Mapping[str, Any]) -> Reply:
    """Return the reply to a job that an answer with these values holds.

    Raises MalformedJob for values that cannot be right.
    """
    if "error" in values:
        raise MalformedJob(f"the answer has an error with a status of success: {values['error']!s:.200}")
    named = {"id": job_id} | {_NAMES.get(name, name): value for name, value in values.items()}
    counts: list[int] | None = None
    if "offsets" in named:
        counts = _lengths(named["offsets"])
        named |= _chunks(named["chunks"], counts) if "chunks" in named else {"output": "tokens", "tokens": counts}
    reply = Reply.join([Reply.from_map(named)])
    num_vectors = len(reply.tokens) if counts is None else sum(counts)
    if reply.vectors is not None and reply.tokens and len(reply.vectors) != num_vectors:
        raise MalformedJob(f"the answer has {len(reply.vectors):,} vectors, and {num_vectors:,} are expected")
    return reply


def checked(reply: Reply, job: Job) -> Reply:
    """Return the reply; raise MalformedJob if it has not what the job asks for, or numbers that are not finite."""
    found = job.answer_of(reply)
    if found is None or len(found) != job.num_lists:
        raise MalformedJob(f"the answer is not to a request with {len(job.texts):,} texts")
    for numbers in (reply.vectors, reply.scores):
        if numbers is not None and not np.isfinite(numbers).all():
            raise MalformedJob("the answer has numbers that are infinite or none")
    if reply.vectors is not None:
        _check_dimension(reply.vectors.shape[1], job.options.dimensions)
    if isinstance(job, Search) and (most := max(map(len, reply.hits or ()))) > job.hits_per_list:
        raise MalformedJob(f"the answer has {most:,} hits for a query, and {job.hits_per_list:,} were asked for")
    return reply


def _check_dimension(found: int, asked: int | None) -> None:
    if found != asked if asked else found == 0:
        raise MalformedJob(f"the vectors of the answer have dimension {found:,}, and {asked or 'more'} was asked for")


def _chunks(chunks: Any, counts: list[int]) -> dict[str, Any]:
    """Return the fields of a reply with these chunks, of which `counts` tells how many each text has."""
    numbers = _numbers("chunks", chunks)
    if len(numbers) != len(CHUNK_COLUMNS) * sum(counts):
        raise MalformedJob(f"the answer has {len(numbers):,} numbers for {sum(counts):,} chunks")
    left = iter(numbers.reshape(-1, len(CHUNK_COLUMNS)).tolist())
    places = [[dict(zip(CHUNK_COLUMNS, row, strict=True)) for row in islice(left, count)] for count in counts]
    return {"output": "chunks", "chunks": places, "tokens": [sum(c["tokens"] for c in part) for part in places]}


def _lengths(offsets: Any) -> list[int]:
    """Return the difference of each offset and the next one; raise MalformedJob for a negative one."""
    lengths: list[int] = np.diff(_numbers("offsets", offsets)).tolist()
    if min(lengths, default=0) < 0:
        raise MalformedJob("the offsets of the answer fall: each takes at least the one before it")
    return lengths


def _numbers(name: str, array: Any) -> NDArray[np.int64]:
    """Return the whole numbers of the array of that name, flat."""
    try:
        if array["dtype"] != "int64":
            raise ValueError(f"dtype {array['dtype']!s:.100}")
        return np.frombuffer(array["data"], "<i8")
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedJob(f"the {name} of the answer cannot be read ({error})") from error
