"""The log of an index's changes, a stream in Redis. Workers apply the changes, and builds fold them in."""

import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from shoal.broker.async_broker import AsyncBroker
from shoal.broker.broker import Broker, Script
from shoal.changes.change import MAX_CHANGE_BYTES, MAX_CHANGES, MAX_CHANGES_BYTES, Change, size_of
from shoal.contract.excerpt import excerpt
from shoal.contract.keys import NAME, NAME_RULE, Keys
from shoal.errors import IndexMismatch, InvalidRequest, MalformedJob, ShoalError, TooManyChanges

#: The position before all changes.
START = "0-0"

#: A position: the number of a change, counted from 1 without gaps, and 18 random digits. The first 9 digits name the
#: log, the others this change. A position is also the id of an entry in the stream.
POSITION = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")

#: Highest number in the id of a stream's entry.
_MAX_NUMBER = 2**64 - 1

#: Bytes of entries after which a read ends and the next one begins, so that no read delays Redis or needs much memory.
MAX_READ_BYTES = 2**18

#: Largest number of entries that one read returns.
MAX_READ_ENTRIES = 1_000

_APPEND, _FOLD = (Script.load("shoal.changes", "log", name) for name in ("append", "fold"))
_READ = Script.load("shoal.changes", "read")


class LoggedChange(NamedTuple):
    """A change in the log of an index, or an error if the change cannot be read or changes before it are lost.

    `num` and `size` count the ids and bytes of all changes of the index up to this one. An entry that no client wrote
    has the position of the entry before it.
    """

    position: str
    num: int
    size: int
    change: Change | MalformedJob

    def change_for(self, digest: str, dimension: int) -> Change:
        """Return the change. Raises MalformedJob, and IndexMismatch for vectors of another model or dimension."""
        change = self.change
        if isinstance(change, MalformedJob):
            raise MalformedJob(change.message)
        if change.documents and change.digest != digest:
            names = f"{excerpt(change.digest[:12])}, not {digest[:12]}…"
            raise IndexMismatch(f"change {self.position} has vectors of another model ({names})")
        if change.documents and change.vectors.shape[1] != dimension:
            raise IndexMismatch(
                f"change {self.position} has vectors of {change.vectors.shape[1]:,} numbers, not {dimension:,}"
            )
        return change


class Tail(NamedTuple):
    """The changes after a position of a log, or all changes of the log if it does not contain the position."""

    has_position: bool
    entries: Iterator[LoggedChange]


async def append(commands: AsyncBroker, keys: Keys, index: str, change: Change) -> str:
    """Add a change to the log of an index; return its position. Raises TooManyChanges, and errors of `Change.pack`."""
    packed = change.pack()
    arguments = {
        "index": index,
        "change": packed,
        "num_ids": change.num_ids,
        "size": size_of(change, packed),
        "max_num": MAX_CHANGES,
        "max_size": MAX_CHANGES_BYTES,
        "digits": f"{10**17 + secrets.randbelow(9 * 10**17)}",
    }
    answer = await commands.run(_APPEND, _keys_of(keys, index), arguments)
    if "position" not in answer:
        raise TooManyChanges(
            f"index {index} has {answer['num']:,} changes ({answer['size']:,} bytes) that no build has folded in; "
            f"with these {change.num_ids:,} it may have {MAX_CHANGES:,} ({MAX_CHANGES_BYTES:,} bytes): build it"
        )
    return str(answer["position"].decode())


class ChangeLog:
    """The logs of changes of a pool's indexes, for workers and builds. Thread-safe."""

    def __init__(self, broker: Broker, keys: Keys):
        self._broker = broker
        self._keys = keys

    def positions(self) -> dict[str, str]:
        """Return the position of the last change for each index that was ever changed. Raises Unavailable."""
        answer: list[bytes] = self._broker.execute("HGETALL", self._keys.changed)
        found = {_text(name): _position(line) for name, line in zip(*[iter(answer)] * 2, strict=True)}
        return {name: position for name, position in found.items() if position}

    def since(self, index: str, position: str) -> Tail:
        """Return the changes after a position. Raises Unavailable, and MalformedJob if the key contains no log."""
        number = int(position.partition("-")[0])
        if number < _MAX_NUMBER:
            page = self._read(index, f"({number}-{_MAX_NUMBER}")
            if page.before == position:
                return Tail(True, self._entries(index, page, position, position))
        return Tail(False, self._entries(index, self._read(index, START), START, position))

    def fold(self, index: str, through: str, kept: Sequence[str]) -> None:
        """Record that the published version contains all changes up to `through`. Delete changes that all kept versions
        contain.

        `kept` has, for each kept version, the position of the last change in it. Raises Unavailable.
        """
        self._broker.run(_FOLD, _keys_of(self._keys, index), {"index": index, "through": through, "kept": list(kept)})

    def _entries(self, index: str, page: "_Page", reached: str, known: str) -> Iterator[LoggedChange]:
        """Yield the entries after `reached`, beginning with `page`. The caller has all changes up to `known`."""
        if not page.entries and page.last != reached and not _has(known, page.last):
            yield _lost(reached, page.last)
        last_id = reached
        while page.entries:
            for fields in page.entries:
                entry_id, before = _text(fields["id"]), _text(fields["after"])
                if before:
                    if before not in (reached, last_id) and not _has(known, before):
                        yield _lost(reached, before)
                    reached = entry_id
                last_id = entry_id
                yield _entry(entry_id, reached, fields)
            if last_id == f"{_MAX_NUMBER}-{_MAX_NUMBER}":  # no id is higher
                return
            page = self._read(index, f"({last_id}")

    def _read(self, index: str, start: str) -> "_Page":
        limits = {"max_bytes": MAX_READ_BYTES, "max_entries": MAX_READ_ENTRIES, "max_change_bytes": MAX_CHANGE_BYTES}
        keys = [self._keys.changes(index), self._keys.changed]
        found = self._broker.run(_READ, keys, {"index": index, "from": start} | limits)
        if "fault" in found:
            raise MalformedJob(f"{keys[0]} holds something else ({_text(found['fault'])}): delete it")
        return _Page(found["entries"], _position(found["line"]) or START)


class _Page(NamedTuple):
    """Some entries of a log, and the position of its last change."""

    entries: list[dict[str, Any]]
    last: str

    @property
    def before(self) -> str:
        """The position before the first entry that a client wrote."""
        return next((_text(fields["after"]) for fields in self.entries if fields["after"]), self.last)


def _has(position: str, other: str) -> bool:
    """Return True if the changes up to `position` include all changes up to `other`."""
    (number, digits), (other_number, other_digits) = position.split("-"), other.split("-")
    is_same_log = len(digits) == len(other_digits) == 18 and digits[:9] == other_digits[:9]
    return other == START or (is_same_log and int(number) >= int(other_number))


def _keys_of(keys: Keys, index: str) -> list[str]:
    if not NAME.fullmatch(index):
        raise InvalidRequest(f"{excerpt(index)} is no name of an index: it takes {NAME_RULE}")
    return [keys.changes(index), keys.changed]


def _lost(after: str, through: str) -> LoggedChange:
    return LoggedChange(
        through, 0, 0, MalformedJob(f"Redis does not have the changes after {after} up to {through} any more")
    )


def _entry(entry_id: str, position: str, fields: dict[str, Any]) -> LoggedChange:
    change: Change | MalformedJob
    try:
        change = Change.unpack(fields["change"])
    except ShoalError as error:
        change = MalformedJob(f"entry {entry_id}: {error.message}")
    return LoggedChange(position, _number(fields["num"]), _number(fields["size"]), change)


def _position(line: bytes) -> str:
    """Return the position at the beginning of a log's line, or an empty string if the line has none."""
    position = _text(line).partition(" ")[0]
    return position if POSITION.fullmatch(position) else ""


def _number(digits: bytes) -> int:
    return int(digits) if digits.isdigit() and len(digits) <= 15 else 0


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
