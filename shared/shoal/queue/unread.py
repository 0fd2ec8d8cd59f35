"""Results that were not read: scripts count them, so a client that fetches none is refused before Redis is full.

Idempotency keys are counted with them: what a job with one leaves in Redis lives as long as the key.
A result that a reader took without a script, or that has expired, is found by looking whether its key is still there.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.broker.broker import Broker
from shoal.broker.script import Script
from shoal.keys import Keys

#: Most results that one run of the script looks at: half a millisecond of Redis.
MAX_SWEPT = 500

#: Looks whether results are still there.
SWEEP = Script.load("shoal.queue", "lib", "unread", "sweep")


class UnreadLoad(NamedTuple):
    """The number of results that were not read, and their bytes with those of their keys and of idempotency keys."""

    num_results: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class UnreadResults:
    """The results of one pool that were not read, as workers look at them."""

    broker: Broker
    keys: Keys
    result_ttl_s: int

    def sweep(self) -> bool:
        """Look at up to `MAX_SWEPT` results that are due, and stop counting those that are gone.

        Return True if more are due. Raises Unavailable.
        """
        due = self._run([])
        return bool(due) and bool(self._run(due))

    def _run(self, results: list[bytes]) -> list[bytes]:
        return list(self.broker.run(SWEEP, [self.keys.root], sweep_arguments(results, self.result_ttl_s))["due"])


def sweep_arguments(results: list[bytes], result_ttl_s: int) -> dict[str, Any]:
    """Return the arguments of `SWEEP`, which looks at the results and answers with those that are due then."""
    return {"results": results, "max_results": MAX_SWEPT, "result_ttl_s": result_ttl_s}
