"""A command that blocks in Redis while the thread that sent it does other things."""

import select
import time
from contextlib import ExitStack
from typing import Any

from shoal.broker.connections import Connections


class BlockedCommand:
    """A command that was sent and may block in Redis for `block_s`. It has a connection until `end`. For one thread.

    Raises redis.RedisError when Redis does not answer, as its methods do, and Unavailable where the process may have
    few connections.
    """

    def __init__(self, connections: Connections, *command: Any, block_s: float):
        connections.check_spare()
        self._connections = connections
        with ExitStack() as stack:
            stack.enter_context(connections.reserved())
            self._connection = connections.send(command)
            self._reserved = stack.pop_all()
        self._late_at = time.monotonic() + block_s + self._connection.socket_timeout

    def fileno(self) -> int:
        """Return a descriptor that can be read once the answer has come or the connection is broken."""
        return int(self._connection._sock.fileno())

    @property
    def has_ended(self) -> bool:
        """True once the answer has come, the connection is broken, or the answer is overdue."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        return bool(poll.poll(0)) or time.monotonic() > self._late_at

    def end(self) -> Any:
        """Return the answer, for which there is the time of any answer, and give the connection back.

        An error that Redis answers is an answer.
        """
        with self._reserved:
            return self._connections.receive(self._connection)
