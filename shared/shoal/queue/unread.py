"""Results that were not read: scripts count them, so a client that fetches none is refused before Redis is full.

Idempotency keys are counted with them: what a job with one leaves in Redis lives as long as the key.
A result that a reader took without a script, or that has expired, is found by looking whether its key is still there.
"""

from dataclasses import dataclass
from typing import NamedTuple

from shoal.blocking import run_now
from shoal.broker.broker import Broker
from shoal.broker.commands import BlockingCommands, Commands
from shoal.broker.script import Script
from shoal.keys import Keys

#: Most results that one run of the script looks at: half a millisecond of Redis.
MAX_SWEPT = 500

_SWEEP = Script.load("shoal.queue", "lib", "unread", "sweep")


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

    def load(self) -> UnreadLoad:
        """Return how many there are; those that were taken or have expired count until a sweep finds them."""
        num_results, num_bytes = self.broker.execute("HMGET", self.keys.unread_load, "results", "bytes")
        return UnreadLoad(int(num_results or 0), int(num_bytes or 0))

    def sweep(self) -> bool:
        """Look at up to `MAX_SWEPT` results that are due, and stop counting those that are gone.

        Return True if more are due.
        """
        return run_now(sweep(BlockingCommands(self.broker), self.keys, self.result_ttl_s))


async def sweep(commands: Commands, keys: Keys, result_ttl_s: int) -> bool:
    """Sweep as `UnreadResults` does."""

    async def run(results: list[bytes]) -> list[bytes]:
        """Look at the results, and return those that are due then."""
        arguments = {"results": results, "max_results": MAX_SWEPT, "result_ttl_s": result_ttl_s}
        return list((await commands.run(_SWEEP, [keys.root], arguments))["due"])

    due = await run([])
    return bool(due) and bool(await run(due))
