"""The threads of a worker that keep its indexes up to date: with what is published, changed and checked."""

import logging
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from shoal_workers.index.serving.open_indexes import LOOK_EVERY_S, OpenIndexes

log = logging.getLogger(__name__)

#: Interval at which a worker looks for changes of indexes, in seconds: a command to Redis each time.
FOLLOW_EVERY_S = 1.0

#: Lowest priority of a thread on Linux.
_LOWEST_PRIORITY = 19


@contextmanager
def watched(indexes: OpenIndexes) -> Iterator[None]:
    """Look for new versions, apply changes and compare checksums while the context lasts, in a thread each."""
    threads = [threading.Thread(target=partial(run, indexes), daemon=True) for run in (_look, follow, _check)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        indexes.stopping.set()
        for thread in threads:
            thread.join()


def _look(indexes: OpenIndexes) -> None:
    while not indexes.stopping.wait(LOOK_EVERY_S):
        try:
            indexes.look(time.monotonic())
        except Exception:  # any: without this thread, no new version would ever be served
            log.exception("looking for new versions of indexes failed")


def follow(indexes: OpenIndexes) -> None:
    """Apply changes until the worker ends."""
    # Workers that were started together are not to read a change at the same moment: Redis serves one at a time.
    indexes.stopping.wait(random.uniform(0, FOLLOW_EVERY_S))  # noqa: S311
    while not indexes.stopping.wait(FOLLOW_EVERY_S):
        try:
            indexes.follow()
        except Exception:  # any: without this thread, no change would ever be applied
            log.exception("following the changes of indexes failed")


def _check(indexes: OpenIndexes) -> None:
    if sys.platform == "linux":  # where a thread has a priority of its own: nothing is to wait for checksums
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
    while not indexes.stopping.wait(LOOK_EVERY_S):
        try:
            indexes.check_files(time.monotonic())
        except Exception:  # any: without this thread, no index that has failed would ever be tried again
            log.exception("comparing the files of indexes with their checksums failed")
