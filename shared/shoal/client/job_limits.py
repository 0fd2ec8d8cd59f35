"""Checks of calls before their jobs are sent."""

from shoal.contract.excerpt import excerpt
from shoal.contract.jobs import LANES, Job
from shoal.errors import InvalidRequest, TooLarge
from shoal.queue.lane import MAX_PUT_BYTES


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


def put_share(job: Job) -> float:
    """Return the part of the largest put that the parts of a job take, each with a copy of its query.

    The job has one vector or score for each text; a small one counts as 0. Raises TooLarge for more than one put takes.
    """
    query = "".join(job.queries.values())
    num_parts = -(-len(job.texts) // job.texts_per_job)
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
