"""Results that were not read: scripts count them, so a client that fetches none is refused before Redis is full.

Idempotency keys are counted with them: what a job with one leaves in Redis lives as long as the key.
A result that a reader took without a script, or that has expired, is found by looking whether its key is still there.
"""

from dataclasses import dataclass
from typing import NamedTuple

from shoal.broker.broker import Broker
from shoal.broker.script import Script
from shoal.keys import Keys

#: Most results that one run of the script looks at: half a millisecond of Redis.
MAX_SWEPT = 500

_SWEEP = Script.load("shoal.queue", "lane", "sweep")


class UnreadLoad(NamedTuple):
    """The number of results that were not read, and their bytes with those of their keys and of idempotency keys."""

    num_results: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class UnreadResults:
    """The results of one pool that were not read. Every method raises Unavailable when Redis does not answer."""

    broker: Broker
    keys: Keys
    result_ttl_s: int

    @property
    def script_keys(self) -> tuple[str, str]:
        """Return the keys that scripts take, in their order."""
        return self.keys.unread, self.keys.unread_load

    def load(self) -> UnreadLoad:
        """Return how many there are; those that were taken or have expired count until a sweep finds them."""
        num_results, num_bytes = self.broker.execute("HMGET", self.keys.unread_load, "results", "bytes")
        return UnreadLoad(int(num_results or 0), int(num_bytes or 0))

    def sweep(self) -> bool:
        """Look at up to `MAX_SWEPT` results that are due, and stop counting those that are gone.

        Return True if more are due.
        """
        due = self._run([])
        return bool(due) and bool(self._run(due))

    def _run(self, results: list[bytes]) -> list[bytes]:
        """Look at the results, and return those that are due then."""
        names = [result.partition(b" ")[0].decode() for result in results]
        found = [self.keys.once(name[1:]) if name[:1] == "=" else self.keys.result(name) for name in names]
        arguments = {"results": results, "max_results": MAX_SWEPT, "result_ttl_s": self.result_ttl_s}
        return list(self.broker.run(_SWEEP, [*self.script_keys, *found], arguments)["due"])
