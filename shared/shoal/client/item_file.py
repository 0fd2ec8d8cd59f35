"""The file that is written for the texts of a program, which a long job then reads."""

import json
from collections.abc import Sequence
from contextlib import aclosing
from os import SEEK_END
from pathlib import Path

from shoal.client.blocking_work import BlockingWork
from shoal.client.parts import groups
from shoal.client.source_file import Item, Items
from shoal.errors import DiskFull, InvalidRequest
from shoal.excerpt import excerpt

#: Items that are written at a time.
_GROUP = 256


async def write_items(path: Path, items: Items, work: BlockingWork) -> None:
    """Write the items into a new file, one JSON object a line; at an error, or if it is cancelled, delete the file.

    Raises InvalidRequest if the file exists, and for an item that JSON cannot hold, and DiskFull.
    """
    try:
        await work.do(_create, path)
    except FileExistsError:
        raise InvalidRequest(f"{path} has the texts of an earlier call: name another `out`, or delete it") from None
    num_items = 0
    try:
        async with aclosing(groups(items, _GROUP)) as found:
            async for group in found:
                await work.do(_append, path, num_items, group)
                num_items += len(group)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in DiskFull.ERRNOS:
            raise DiskFull(f"no room to write {path} ({error.strerror}): make some, try again") from error
        raise


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.open("x").close()


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
