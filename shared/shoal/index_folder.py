"""The file `current` in the folder of an index."""

from pathlib import Path

from shoal.errors import IndexNotFound

#: Name of the file. It contains the name of the version to serve.
CURRENT = "current"


def read_current(folder: Path) -> bytes:
    """Return the contents of an index's file `current`. Raises IndexNotFound if there is none."""
    try:
        return (folder / CURRENT).read_bytes()
    except OSError as error:
        raise IndexNotFound(
            f"{folder} holds no index: build one with `shoal index build SOURCE --out {folder}`"
        ) from error
