"""The replies to the parts of a search, brought to one version of the index."""

import time
from collections.abc import Awaitable, Callable, Sequence

from shoal.replies import Reply

#: Pause before parts of several versions of an index are computed once more, in seconds: workers switch one after the
#: other.
SWITCH_PAUSE_S = 0.05


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
