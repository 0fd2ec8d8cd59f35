"""Long lists in groups, each of which is written or sent as one."""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from shoal.errors import ShoalError

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
    """Add to the message of an error how many documents or ids, `num`, were written before it."""
    try:
        yield
    except ShoalError as error:
        if num:
            error.args = (f"{error.message} (the first {num:,} are written)",)
        raise
