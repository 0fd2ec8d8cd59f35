"""The replies to the parts of a search, brought to one version of the index."""

import time
from collections.abc import Iterator, Sequence

from shoal.contract.replies import Reply

#: Pause before parts of several versions of an index are computed once more, in seconds: workers switch one after the
#: other.
SWITCH_PAUSE_S = 0.05


def of_other_versions(replies: Sequence[Reply], until: float) -> Iterator[tuple[float, list[int]]]:
    """Yield what to do until all replies to the parts of a job are of one version of the index.

    That is a pause in seconds, and the numbers of the replies to compute again, which the caller then replaces: all but
    those of the version that was computed last, as workers switch one after the other. It ends once there are none, at
    `until` on the monotonic clock, and for replies that have an error or no version.
    """
    wanted, pause_s = replies[-1].index_version, 0.0
    while wanted and not any(reply.error for reply in replies) and time.monotonic() + pause_s < until:
        others = [n for n, reply in enumerate(replies) if reply.index_version != wanted]
        if not others:
            return
        yield pause_s, others
        wanted, pause_s = replies[others[-1]].index_version, SWITCH_PAUSE_S
