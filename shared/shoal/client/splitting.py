"""Long lists in parts: cutting a list, and repeating jobs until one model and index version made all replies."""

import time
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from shoal.contract.jobs import Job, new_id
from shoal.contract.replies import Reply
from shoal.errors import ShoalError

#: Seconds to wait before parts are computed again, because workers switch to a new index version one after the other.
SWITCH_PAUSE_S = 0.05

#: Largest number of unanswered jobs of a stream: more than a lane has.
MAX_WINDOW = 2**20

T = TypeVar("T")


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size`."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


async def async_batches(items: Iterable[T] | AsyncIterable[T], size: int) -> AsyncGenerator[list[T], None]:
    """Yield the items in lists of `size`."""
    if not isinstance(items, AsyncIterable):
        for batch in batches(items, size):
            yield batch
        return
    batch = []
    async for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


@contextmanager
def noting_num_written(num: int) -> Iterator[None]:
    """Add `num`, the number of documents or ids already written, to the message of an error."""
    try:
        yield
    except ShoalError as error:
        if num:
            error.args = (f"{error.message} (the first {num:,} are written)",)
        raise


def jobs_to_repeat(
    parts: Sequence[Job], replies: Sequence[Reply], until: float, like: Reply | None = None
) -> Iterator[tuple[float, list[int], list[Job]]]:
    """Yield the jobs to send again until all replies have the same fingerprint and the same version of the index.

    Each step yields a pause in seconds, the positions of the replies that the caller replaces, and their new jobs. The
    first step compares all replies with `like`, or with the last reply that has a fingerprint. Later steps compare
    them with the reply that was replaced last, because workers switch one after the other. The steps end at `until` on
    the monotonic clock, or when a reply is an error.
    """
    wanted, pause_s = like or next((reply for reply in reversed(replies) if reply.fingerprint), replies[-1]), 0.0
    while not any(reply.error for reply in replies) and time.monotonic() + pause_s < until:
        others = [n for n, reply in enumerate(replies) if not reply.is_like(wanted)]
        if not others:
            return
        pins = [parts[n].fingerprint if replies[n].has_fingerprint(wanted) else wanted.fingerprint for n in others]
        again = [replace(parts[n], id=new_id(), fingerprint=pin) for n, pin in zip(others, pins, strict=True)]
        yield pause_s, others, again
        wanted, pause_s = replies[others[-1]], SWITCH_PAUSE_S
