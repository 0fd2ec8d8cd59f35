"""Results that were not read: scripts count them, so a client that fetches none is refused before Redis is full.

Idempotency keys are counted with them: what a job with one leaves in Redis lives as long as the key.
A result that a reader took without a script, or that has expired, is found by looking whether its key is still there.
"""

import logging
from typing import NamedTuple

from shoal.broker.broker import Broker
from shoal.broker.script import ScriptCall
from shoal.contract.keys import Keys
from shoal.errors import ShoalError
from shoal.queue import scripts

log = logging.getLogger(__name__)

_SWEEP = scripts.load("sweep")


class UnreadLoad(NamedTuple):
    """The number of results that were not read, and their bytes, with their keys and idempotency keys."""

    num_results: int
    num_bytes: int


class UnreadResults:
    """The results of one pool that were not read, as workers look at them."""

    def __init__(self, broker: Broker, keys: Keys):
        self._broker = broker
        self._call = ScriptCall([keys.root], {})
        self._fault = ""

    def sweep(self) -> bool:
        """Look at some of those that are due, and stop counting those that are gone; return True if more may be due.

        What Redis refuses is logged, once: it must not keep a worker from its jobs. Raises Unavailable when Redis does
        not answer.
        """
        (outcome,) = self._broker.run_many(_SWEEP, [self._call])
        fault = str(outcome) if isinstance(outcome, ShoalError) else ""
        if fault and fault != self._fault:
            log.warning("unread results are not looked at: %s", fault)
        self._fault = fault
        return not fault and bool(outcome["more"])
