"""The limits of jobs, by which long lists are split, and checks of jobs before they are sent."""

from collections.abc import Mapping
from typing import Any

from shoal.errors import InvalidRequest, TooLarge
from shoal.excerpt import excerpt
from shoal.jobs import LANES, Job
from shoal.queue.lane import MAX_PUT_BYTES
from shoal.size_limit import MAX_TOKENIZER_CHARS, check_chunk_vectors, check_token_vectors

#: Most texts in one job. Longer lists are split: several workers share them, and no job behind them waits long.
TEXTS_PER_JOB = 32

#: Most hits that one job asks for: with documents of 1.5 KB, 8 MB. Lists of queries with a large `k` are split further.
MAX_HITS_PER_JOB = 5_000

#: Most texts in one job for token vectors: 1.5 MB where a text has 256 tokens of 384 dimensions.
TEXTS_PER_TOKENS_JOB = 4

#: Texts of a job for the tokenizer: the longest that most models take fit into one.
TEXTS_PER_TOKENIZER_JOB = 8


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
        if job.search.is_one_question:
            return max(1, len(job.texts))
        return max(1, min(TEXTS_PER_JOB, MAX_HITS_PER_JOB // job.hits_per_list))
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
