"""Parts of all clients: checks before they send, limits by which a long list is split, and the vectors of replies."""

import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.errors import InvalidRequest, ShoalError, TooLarge
from shoal.excerpt import excerpt
from shoal.jobs import LANES, Job, Options
from shoal.queue.lane import MAX_PUT_BYTES
from shoal.replies import Reply
from shoal.size_limit import MAX_TOKENIZER_CHARS, check_chunk_vectors, check_token_vectors

T = TypeVar("T")

#: Vectors of texts, float32 `[texts, dimension]`, or token vectors, `[tokens, dimension]` for each text.
Vectors = NDArray[np.float32] | list[NDArray[np.float32]]

#: Most texts in one job. Longer lists are split: several workers share them, and no job behind them waits long.
TEXTS_PER_JOB = 32

#: Most hits that one job asks for: with documents of 1.5 KB, 8 MB. Lists of queries with a large `k` are split further.
MAX_HITS_PER_JOB = 5_000

#: Most texts in one job for token vectors: 1.5 MB where a text has 256 tokens of 384 dimensions.
TEXTS_PER_TOKENS_JOB = 4

#: Texts of a job for the tokenizer: the longest that most models take fit into one.
TEXTS_PER_TOKENIZER_JOB = 8

#: Pause before parts of several versions of an index are computed once more, in seconds: workers switch one after the
#: other.
SWITCH_PAUSE_S = 0.05


def check_lane(lane: str) -> str:
    """Return `lane`; raise InvalidRequest if there is none of that name."""
    if lane not in LANES:
        raise InvalidRequest(f"lane is {excerpt(lane)}: it takes one of {', '.join(LANES)}")
    return lane


def check_key(idempotency_key: str) -> str:
    """Return `idempotency_key`; raise InvalidRequest unless it is 1 to 255 printable characters."""
    if not (0 < len(idempotency_key) <= 255 and idempotency_key.isprintable()):
        raise InvalidRequest(
            f"the idempotency key is {excerpt(idempotency_key)}: it takes 1 to 255 printable characters, such as a UUID"
        )
    return idempotency_key


def texts_per_job(job: Job) -> int:
    """Return the most texts that one job of the kind takes; a chunk counts as a text."""
    if job.op == "search":
        return max(1, min(TEXTS_PER_JOB, MAX_HITS_PER_JOB // job.k))
    if job.op in MAX_TOKENIZER_CHARS:
        return TEXTS_PER_TOKENIZER_JOB
    return TEXTS_PER_TOKENS_JOB if job.options.output == "tokens" else TEXTS_PER_JOB


def put_share(job: Job) -> float:
    """Return the part of the largest put that the parts of a job take, each with a copy of its query.

    The job has one vector or score for each text; a small one counts as 0. Raises TooLarge for more than one put takes.
    """
    query = job.query or "" if job.op == "rerank" else ""
    num_parts = -(-len(job.texts) // texts_per_job(job))
    num_chars = num_parts * len(query) + sum(map(len, job.texts))
    if num_chars <= MAX_PUT_BYTES // 64:  # so it need not be encoded: a character has at most 4 bytes
        return 0.0
    query_bytes, text_bytes = num_bytes(query), sum(map(num_bytes, job.texts))
    if (total := num_parts * query_bytes + text_bytes) > MAX_PUT_BYTES:
        of_query = f" and the query has {query_bytes:,}, in each of {num_parts:,} jobs" if query else ""
        raise TooLarge(
            f"the texts have {text_bytes:,} bytes{of_query}: {total:,} bytes at a time are over what a lane takes, "
            f"{MAX_PUT_BYTES:,}: split the list{', or shorten the query' if query else ''}"
        )
    return total / MAX_PUT_BYTES


def num_bytes(text: str) -> int:
    """Return the size of a text in UTF-8; half of a surrogate pair, which it cannot hold, counts 3 bytes."""
    return len(text.encode(errors="surrogatepass"))


def check_num_vectors(job: Job, heartbeats: Mapping[str, Mapping[str, Any]], max_bytes: int) -> None:
    """Raise TooLarge if the job asks for vectors of tokens or chunks that certainly have more bytes.

    The heartbeats are those of the workers, one of which will do the job.
    """
    sizes = [(about.get("dimension"), about.get("max_tokens")) for about in heartbeats.values()]
    known = [(d, m) for d, m in sizes if isinstance(d, int) and isinstance(m, int)]
    if not known:
        return
    dimension, max_tokens = min(d for d, _ in known), min(m for _, m in known)
    if job.options.output == "chunks":
        tokens = min(max_tokens, job.options.chunk_tokens or max_tokens)
        check_chunk_vectors(job.texts, tokens, dimension, max_bytes)
    else:
        check_token_vectors(job.texts, job.options.truncation_side, max_tokens, dimension, max_bytes)


def as_list(texts: str | Iterable[str]) -> list[str]:
    """Return the texts as a list: of one for a single str."""
    return [texts] if isinstance(texts, str) else list(texts)


async def groups(texts: Iterable[T] | AsyncIterable[T], num_texts: int) -> AsyncGenerator[list[T], None]:
    """Yield the texts in groups of so many."""
    if isinstance(texts, AsyncIterable):
        group: list[T] = []
        async for text in texts:
            group.append(text)
            if len(group) == num_texts:
                yield group
                group = []
        if group:
            yield group
    else:
        source = iter(texts)
        while group := list(islice(source, num_texts)):
            yield group


def bounded_groups(items: Iterable[T], sizes: Iterable[int], max_num: int, max_size: int) -> Iterator[list[T]]:
    """Yield the items in groups of at most `max_num`, whose sizes together are at most `max_size`.

    An item that is larger is a group by itself.
    """
    group: list[T] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if group and (len(group) == max_num or total + size > max_size):
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


@contextmanager
def telling_how_many(num: int) -> Iterator[None]:
    """Add to the message of an error that so many documents or ids were written before it."""
    try:
        yield
    except ShoalError as error:
        if num:
            error.args = (f"{error.message} (the first {num:,} are written)",)
        raise


async def of_one_version(
    replies: Sequence[Reply],
    compute: Callable[[list[int]], Awaitable[Sequence[Reply]]],
    sleep: Callable[[float], Awaitable[None]],
    until: float,
) -> list[Reply]:
    """Return the replies to the parts of a job, all of one version of the index.

    While they are of several versions, `compute` is given the numbers of those to compute again, and returns their
    replies: of all but the version that was computed last, as workers switch one after the other. If that takes until
    `until`, on the monotonic clock, or a reply has an error or no version, the replies are returned as they are.
    """
    found, wanted, pause_s = list(replies), replies[-1].index_version, 0.0
    while wanted and not any(reply.error for reply in found) and time.monotonic() + pause_s < until:
        others = [n for n, reply in enumerate(found) if reply.index_version != wanted]
        if not others:
            break
        await sleep(pause_s)
        for n, reply in zip(others, await compute(others), strict=True):
            found[n] = reply
        wanted, pause_s = found[others[-1]].index_version, SWITCH_PAUSE_S
    return found


def vectors(reply: Reply, options: Options) -> Any:
    """Return the vectors of a reply to an embed: for each text a row, an array of token vectors, or its chunks."""
    if options.output == "chunks":
        return reply.chunks_by_text()
    if options.output == "tokens":
        return reply.rows_by_text()
    assert reply.vectors is not None
    return reply.vectors
