"""The threads of a worker that keep its indexes up to date: with what is published, changed and checked."""

import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shoal_workers.index.serving.open_indexes import LOOK_EVERY_S, OpenIndexes

log = logging.getLogger(__name__)

#: Interval at which a worker looks for changes of indexes, in seconds: a command to Redis each time.
FOLLOW_EVERY_S = 1.0

#: Lowest priority of a thread on Linux.
_LOWEST_PRIORITY = 19


@contextmanager
def watched(indexes: OpenIndexes) -> Iterator[None]:
    """Look for new versions, apply changes and compare checksums while the context lasts, in a thread each."""
    threads = [threading.Thread(target=run, args=(indexes,), daemon=True) for run in (_look, follow, _check)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        indexes.stopping.set()
        for thread in threads:
            thread.join()


def _look(indexes: OpenIndexes) -> None:
    _repeat(indexes, LOOK_EVERY_S, lambda: indexes.look(time.monotonic()))


def follow(indexes: OpenIndexes) -> None:
    """Apply changes until the worker ends."""
    # Workers that were started together are not to read a change at the same moment: Redis serves one at a time.
    indexes.stopping.wait(random.uniform(0, FOLLOW_EVERY_S))  # noqa: S311
    _repeat(indexes, FOLLOW_EVERY_S, indexes.follow)


def _check(indexes: OpenIndexes) -> None:
    if sys.platform == "linux":  # where a thread has a priority of its own: nothing is to wait for checksums
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
    _repeat(indexes, LOOK_EVERY_S, lambda: indexes.check_files(time.monotonic()))


def _repeat(indexes: OpenIndexes, every_s: float, step: Callable[[], object]) -> None:
    """Take a step again and again until the worker ends."""
    while not indexes.stopping.wait(every_s):
        try:
            step()
        except Exception:  # any: without this thread, nothing would ever be served, applied or checked any more
            log.exception("the indexes could not be brought up to date")
