"""The notice that jobs wait in a lane, for a worker that computes meanwhile."""

import logging
import time

from shoal.broker.broker import Broker, checked
from shoal.broker.connections import BLOCK_S, BlockedCommand
from shoal.errors import ShoalError

log = logging.getLogger(__name__)

#: Time for which nothing is asked after Redis has failed or refused, in seconds.
PAUSE_S = 1.0


class JobNotice:
    """A read of the marker of a lane that ends once there is one, or after a second, and leaves it. For one thread."""

    def __init__(self, broker: Broker, marker: str):
        self._broker = broker
        self._command = ("BLMOVE", marker, marker, "LEFT", "LEFT", f"{BLOCK_S:.3f}")
        self._reading: BlockedCommand | None = None
        self._next_at = 0.0
        self._has_warned = False

    @property
    def is_asked(self) -> bool:
        """True from `ask` on, unless it failed."""
        return self._reading is not None

    @property
    def has_come(self) -> bool:
        """True if the read has ended since it was asked."""
        return self._reading is not None and self._reading.has_ended

    def ask(self) -> None:
        """See that a job that waits, now or later, ends a read.

        Nothing is read for a while after Redis has failed, or after its rules have refused the command.
        """
        if self.is_asked and not self.has_come:
            return
        try:
            with self._broker.translated():
                reading, self._reading = self._reading, None
                if reading:
                    checked([reading.end()])
                if time.monotonic() >= self._next_at:
                    self._reading = self._broker.begin(*self._command, block_s=BLOCK_S)
        except ShoalError as error:
            self._next_at = time.monotonic() + PAUSE_S
            log.log(logging.DEBUG if self._has_warned else logging.WARNING, "no notice of jobs: %s", error)
            self._has_warned = True
