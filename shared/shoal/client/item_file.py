"""The file that is written for the texts of a program, which a long job then reads."""

import json
from collections.abc import Sequence
from contextlib import aclosing
from filecmp import cmp
from hashlib import blake2b
from os import SEEK_END
from pathlib import Path
from secrets import token_hex
from threading import Lock

from shoal.client.blocking_work import BlockingWork
from shoal.client.grouping import groups
from shoal.client.source_file import Item, Items
from shoal.errors import DiskFull, InvalidRequest
from shoal.excerpt import excerpt

#: Items that are written at a time.
_GROUP = 256


class _NewFile:
    """A file of a call, which is deleted if the call ends early, even where a thread creates it only after that."""

    def __init__(self, path: Path):
        self._path = path
        self._lock = Lock()
        self._is_made = self._is_dropped = False

    def create(self) -> None:
        """Create the file, empty; raise FileExistsError if it exists."""
        with self._lock:
            if not self._is_dropped:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._path.open("x").close()
                self._is_made = True

    def drop(self) -> None:
        """Delete the file if `create` made it; it makes none after this."""
        with self._lock:
            self._is_dropped = True
            if self._is_made:
                self._path.unlink(missing_ok=True)


def path_beside(out: str, key: str | None) -> Path:
    """Return the path of the texts of a call with this `out` and this idempotency key, if it has one."""
    name = f".{blake2b(key.encode(errors='surrogatepass'), digest_size=8).hexdigest()}" if key else ""
    return Path(f"{out}{name}.jsonl")


async def write_once(path: Path, items: Items, work: BlockingWork) -> bool:
    """Write the items as `write_items` does, if the file does not hold them already; return True if it is new."""
    part = path.with_name(f"{path.name}.{token_hex(4)}")
    await write_items(part, items, work)
    try:
        return await work.do(_keep, part, path)
    finally:
        part.unlink(missing_ok=True)


async def write_items(path: Path, items: Items, work: BlockingWork) -> None:
    """Write the items into a new file, one JSON object a line; at an error, or if it is cancelled, delete the file.

    Raises InvalidRequest if the file exists, and for an item that JSON cannot hold, and DiskFull.
    """
    file, num_items = _NewFile(path), 0
    try:
        try:
            await work.do(file.create)
        except FileExistsError:
            raise _taken(path) from None
        async with aclosing(groups(items, _GROUP)) as found:
            async for group in found:
                await work.do(_append, path, num_items, group)
                num_items += len(group)
    except BaseException as error:
        file.drop()
        if isinstance(error, OSError) and error.errno in DiskFull.ERRNOS:
            raise DiskFull(f"no room to write {path} ({error.strerror}): make some, try again") from error
        raise


def _keep(part: Path, path: Path) -> bool:
    """Give a file its name, and return True; return False if one of that name is the same."""
    if not path.exists():
        part.replace(path)
        return True
    if not cmp(part, path, shallow=False):
        raise _taken(path)
    return False


def _taken(path: Path) -> InvalidRequest:
    return InvalidRequest(f"{path} has the texts of an earlier call: name another `out`, or delete it")


def _append(path: Path, first: int, items: Sequence[Item]) -> None:
    """Write items at the end of the file, of which the first has the number `first`."""
    lines = "".join(_line(number, item) for number, item in enumerate(items, first))
    with path.open("r+", encoding="utf-8") as file:  # "a" would make the file again after it was deleted
        file.seek(0, SEEK_END)
        file.write(lines)


def _line(number: int, item: Item) -> str:
    try:
        return json.dumps({"text": item} if isinstance(item, str) else dict(item)) + "\n"
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"text {number} is {excerpt(item)}: it takes a str, or a dict with a text that JSON can hold"
        ) from None
