"""The file by which a folder is known to be an index."""

from pathlib import Path

from shoal.errors import IndexNotFound

#: Name of the file, which has the name of the version to serve.
CURRENT = "current"


def read_current(folder: Path) -> bytes:
    """Return the contents of the file of an index. Raises IndexNotFound if there is none."""
    try:
        return (folder / CURRENT).read_bytes()
    except OSError as error:
        raise IndexNotFound(
            f"{folder} holds no index: build one with `shoal index build SOURCE --out {folder}`"
        ) from error
