"""Results that were not read: scripts count them, so a client that fetches none is refused before Redis is full.

Idempotency keys are counted with them: what a job with one leaves in Redis lives as long as the key.
A result that a reader took without a script, or that has expired, is found by looking whether its key is still there.
"""

from dataclasses import dataclass
from typing import NamedTuple

from shoal.broker.broker import Broker
from shoal.keys import Keys
from shoal.queue import scripts

_SWEEP = scripts.load("sweep")


class UnreadLoad(NamedTuple):
    """The number of results that were not read, and their bytes with those of their keys and of idempotency keys."""

    num_results: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class UnreadResults:
    """The results of one pool that were not read, as workers look at them."""

    broker: Broker
    keys: Keys

    def sweep(self) -> bool:
        """Look at some of those that are due, and stop counting those that are gone; return True if more may be due."""
        return bool(self.broker.run(_SWEEP, [self.keys.root], {})["more"])
