"""The limit of open files of a worker process."""

import resource
import sys

#: Most open files that a worker asks for: some thousand indexes have so many.
MAX_FILES = 65_536


def raise_limit() -> None:
    """Raise the limit of open files as far as the system lets this process, to `MAX_FILES` at most.

    Each file of an index that is mapped into memory counts as an open one, and many systems allow 1,024 at first.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(MAX_FILES, allowed)), hard))
