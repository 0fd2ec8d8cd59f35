"""The log of an index's changes: a stream in Redis, which workers follow and builds fold in (docs/protocol.md)."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from shoal.blocking import blocking
from shoal.broker.broker import Broker
from shoal.broker.commands import BlockingCommands, Commands
from shoal.broker.script import Script
from shoal.changes.change import MAX_CHANGE_BYTES, MAX_CHANGES, MAX_CHANGES_BYTES, Change, size_of
from shoal.errors import IndexMismatch, InvalidRequest, MalformedJob, ShoalError, TooManyChanges
from shoal.excerpt import excerpt
from shoal.keys import NAME, NAME_RULE, Keys

#: The position before all changes.
START = "0-0"

#: The last position that there can be: nothing can be read after it.
_LAST = f"{2**64 - 1}-{2**64 - 1}"

#: A position: the id of an entry of a stream.
POSITION = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


#: Bytes of entries after which a read ends, so that it holds neither Redis nor much memory; the next one goes on.
MAX_READ_BYTES = 2**18

#: Most entries of a read.
MAX_READ_ENTRIES = 1_000

_APPEND, _FOLD = (Script.load("shoal.changes", "log", name) for name in ("append", "fold"))
_READ = Script.load("shoal.changes", "read")


class Entry(NamedTuple):
    """A change in the log of an index, or the reason why it cannot be read.

    `num` and `size` are the number of changed ids and the bytes of all changes of the index so far, with this one.
    """

    position: str
    num: int
    size: int
    change: Change | MalformedJob

    def change_for(self, digest: str, dimension: int) -> Change:
        """Return the change, whose vectors can be compared with those of the model.

        Raises MalformedJob, and IndexMismatch for vectors of another model or dimension.
        """
        change = self.change
        if isinstance(change, MalformedJob):
            raise MalformedJob(change.message)
        if change.documents and change.digest != digest:
            raise IndexMismatch(f"its vectors are of another model ({excerpt(change.digest[:12])}, not {digest[:12]}…)")
        if change.documents and change.vectors.shape[1] != dimension:
            raise IndexMismatch(f"its vectors have {change.vectors.shape[1]:,} numbers, not {dimension:,}")
        return change


class AsyncChangeLog:
    """The logs of a pool, as clients use them."""

    def __init__(self, commands: Commands, keys: Keys):
        self._commands = commands
        self._keys = keys

    async def append(self, index: str, change: Change) -> str:
        """Add a change to the log of an index, and return its position.

        Raises TooManyChanges, TooLarge, InvalidText, InvalidRequest, Overloaded, and Unavailable.
        """
        packed = change.pack()
        arguments = {
            "index": index,
            "change": packed,
            "num_ids": change.num_ids,
            "size": size_of(change, packed),
            "max_num": MAX_CHANGES,
            "max_size": MAX_CHANGES_BYTES,
        }
        answer = await self._commands.run(_APPEND, _keys_of(self._keys, index), arguments)
        if "position" not in answer:
            raise TooManyChanges(
                f"index {index} has {answer['num']:,} changes ({answer['size']:,} bytes) that no build has folded in; "
                f"with these {change.num_ids:,} it may have {MAX_CHANGES:,} ({MAX_CHANGES_BYTES:,} bytes): build it"
            )
        return str(answer["position"].decode())

    async def positions(self) -> dict[str, str]:
        """Return by the name of each index that was ever changed the position of its last change.

        Raises Unavailable.
        """
        answer: list[bytes] = await self._commands.execute("HGETALL", self._keys.changed)
        found = {_text(name): _text(state).partition(" ")[0] for name, state in zip(*[iter(answer)] * 2, strict=True)}
        return {name: position for name, position in found.items() if POSITION.fullmatch(position)}


class ChangeLog:
    """The logs of the changes of a pool's indexes. Thread-safe."""

    def __init__(self, broker: Broker, keys: Keys):
        self.asynchronous = AsyncChangeLog(BlockingCommands(broker), keys)
        self._broker = broker
        self._keys = keys

    append = blocking(AsyncChangeLog.append)
    positions = blocking(AsyncChangeLog.positions)

    def since(self, index: str, position: str) -> Iterator[Entry]:
        """Yield the changes of an index after a position, in their order; a few are read at a time.

        Raises Unavailable, and MalformedJob if the log is none.
        """
        key = self._keys.changes(index)
        while position != _LAST:
            limits = {
                "max_bytes": MAX_READ_BYTES,
                "max_entries": MAX_READ_ENTRIES,
                "max_change_bytes": MAX_CHANGE_BYTES,
            }
            found = self._broker.run(_READ, [key], {"position": position} | limits)
            if "fault" in found:
                raise MalformedJob(f"{key} holds something else ({_text(found['fault'])}): delete it")
            entries = [_entry(fields) for fields in found["entries"]]
            if not entries:
                return
            yield from entries
            position = entries[-1].position

    def fold(self, index: str, through: str, oldest: str) -> None:
        """Note that the published version has the changes up to `through`, and remove those before `oldest`.

        The others may be needed: `oldest` is the lowest position up to which a version that is kept has them. Raises
        Unavailable.
        """
        arguments = {"index": index, "through": through, "oldest": oldest}
        self._broker.run(_FOLD, _keys_of(self._keys, index), arguments)


def order_of(position: str) -> tuple[int, int]:
    """Return numbers by which positions are in order."""
    time_ms, number = position.split("-")
    return int(time_ms), int(number)


def _keys_of(keys: Keys, index: str) -> list[str]:
    if not NAME.fullmatch(index):
        raise InvalidRequest(f"{excerpt(index)} is no name of an index: it takes {NAME_RULE}")
    return [keys.changes(index), keys.changed]


def _entry(fields: dict[str, Any]) -> Entry:
    change: Change | MalformedJob
    try:
        change = Change.unpack(fields["change"])
    except ShoalError as error:
        change = MalformedJob(error.message)
    return Entry(_text(fields["position"]), _number(fields["num"]), _number(fields["size"]), change)


def _number(digits: bytes) -> int:
    """Return a sum in an entry; 0 for one that no script wrote."""
    return int(digits) if digits.isdigit() and len(digits) <= 15 else 0


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
