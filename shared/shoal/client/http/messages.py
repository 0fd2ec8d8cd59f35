"""The bodies of requests to the API and the replies in its answers: how jobs are written, split and read over HTTP."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal import wire
from shoal.client.job_limits import MAX_HITS_PER_JOB, TEXTS_PER_TOKENS_JOB
from shoal.errors import InvalidText, MalformedJob
from shoal.jobs import Job, new_id
from shoal.options import OPTION_DEFAULTS
from shoal.replies import CHUNK_COLUMNS, Reply

#: Most texts, and bytes of texts, in one request, if the API takes as much. Longer lists are split.
MAX_REQUEST_TEXTS, MAX_REQUEST_BYTES = 256, 4 * 2**20

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
        if job.search.is_one_question:
            return [job]
        max_texts, num_bytes = self._texts_of(job), 0
        parts: list[list[str]] = [[]]
        for text in job.texts:
            size = len(text.encode(errors="surrogatepass")) + _BYTES_OF_A_HEAD
            if parts[-1] and (len(parts[-1]) >= max_texts or num_bytes + size > self.max_bytes):
                parts.append([])
                num_bytes = 0
            parts[-1].append(text)
            num_bytes += size
        return [job] if len(parts) == 1 else [replace(job, texts=texts, id=new_id()) for texts in parts]

    def _texts_of(self, job: Job) -> int:
        if job.op == "search":
            return min(self.max_texts, max(1, MAX_HITS_PER_JOB // job.hits_per_list))
        return self.max_texts if job.options.is_cacheable else min(self.max_texts, TEXTS_PER_TOKENS_JOB)


def body_of(job: Job, **fields: Any) -> bytes:
    """Return the body of a request for the job, as msgpack, with further fields. Raises InvalidText, with the text."""
    values: dict[str, Any] = {**_texts(job), **fields}
    values |= {k: value for k, default in OPTION_DEFAULTS.items() if (value := getattr(job.options, k)) != default}
    if job.op == "search":
        values |= {"k": job.k, "index": job.index} | job.search.to_map()
        values.pop("num_negative", None)
    if job.op == "rerank":
        values |= {"query": job.query, "raw_scores": job.raw_scores}
    try:
        return wire.pack(values)
    except InvalidText:
        job.pack()  # raises the error that names the text
        raise


def _texts(job: Job) -> dict[str, list[str]]:
    """Return the texts of a job by the fields that have them in a request."""
    if job.op != "search":
        return {"inputs": job.texts}
    num_queries = len(job.texts) - job.search.num_negative
    lists = {"queries": job.texts[:num_queries], "negative": job.texts[num_queries:]}
    return {name: texts for name, texts in lists.items() if texts}


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
    found: Any = {"embed": reply.vectors, "search": reply.hits, "rerank": reply.scores}[job.op]
    if found is not None and job.options.output != "vector":
        found = reply.chunks if job.options.output == "chunks" else reply.tokens
    if found is None or len(found) != (job.num_lists if job.op == "search" else len(job.texts)):
        raise MalformedJob(f"the answer is not to a request with {len(job.texts):,} texts")
    for numbers in (reply.vectors, reply.scores):
        if numbers is not None and not np.isfinite(numbers).all():
            raise MalformedJob("the answer has numbers that are infinite or none")
    if reply.vectors is not None:
        _check_dimension(reply.vectors.shape[1], job.options.dimensions)
    if job.op == "search" and (most := max(map(len, reply.hits or ()))) > job.hits_per_list:
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
