"""A process's own reply address, read so that a connection that breaks while replies are on their way loses none."""

from contextlib import suppress
from typing import Any

from shoal.broker.async_broker import AsyncBroker
from shoal.broker.connections import SHORT_BLOCK_S
from shoal.contract.replies import Reply
from shoal.errors import MalformedJob

#: Most replies fetched at a time.
REPLIES_AT_ONCE = 1_000

#: Replies fetched by the first read. Each read then sets the number for the next one by the sizes that it found.
FIRST_REPLIES = 100

#: Bytes of replies that a read is meant to fetch. Redis serves no other client while it copies them, and none of them
#: is delivered before all have come.
READ_BYTES = 2**20

#: Replies are read from here, and deleted once they are read: after a failover to a Redis whose clock is behind, new
#: ids may be lower than those that were read.
_BEGINNING = b"0"

#: Field of an entry that is not a reply but a note: its value is the id of a job whose result is ready.
_ANSWERED = b"answered"


class ReplyStream:
    """The replies at one address, for one task.

    `answered` has the ids of the watched jobs whose results the last call of `wait` has found to be there.
    """

    def __init__(self, commands: AsyncBroker, key: str):
        self.answered: list[str] = []
        self._commands = commands
        self._key = key
        self._read: list[bytes] = []  # and not deleted yet
        self._max_replies = FIRST_REPLIES

    async def wait(self, timeout_s: float = SHORT_BLOCK_S) -> list[Reply]:
        """Return replies that have come, the oldest first, waiting up to `timeout_s` for one.

        There are so many that they probably have `READ_BYTES` at most. After an error, replies may come a second time.
        """
        block_ms = max(1, int(min(timeout_s, SHORT_BLOCK_S) * 1000))
        read = ("XREAD", "COUNT", self._max_replies, "BLOCK", block_ms, "STREAMS", self._key, _BEGINNING)
        commands: list[tuple[Any, ...]] = [read]
        if self._read:
            commands.insert(0, ("XDEL", self._key, *self._read))
        try:
            found = (await self._commands.pipeline(*commands, block_s=block_ms / 1000))[-1]
        finally:
            self._read = []  # after an error as well: Redis may be another one now
        self.answered = []
        if not found:
            return []
        entries = found[0][1]
        self._read = [entry for entry, _ in entries]
        replies, num_bytes = [], 0
        for _, (kind, value, *_) in entries:
            num_bytes += len(value)
            if kind == _ANSWERED:
                self.answered.append(value.decode(errors="replace"))
            elif value:
                with suppress(MalformedJob):
                    replies.append(Reply.unpack(value))
        of_this_size = len(entries) * READ_BYTES // max(1, num_bytes)
        # at most twice as many: large replies may come after small ones
        self._max_replies = max(1, min(of_this_size, 2 * self._max_replies, REPLIES_AT_ONCE))
        return replies
