"""A store of indexes for tests: a folder behind fsspec's file system, with the faults of a test."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from shoal_workers.index.store.store import IndexStore

#: A secret that a store's errors may contain. No message of Shoal may show it.
SECRET = "swordfish"

#: The code of a file system that hangs. It runs in its own process.
_HANGING = """
import threading
from fsspec.spec import AbstractFileSystem

class HangingFileSystem(AbstractFileSystem):
    protocol = "hanging"

    def ls(self, path, detail=True, **options):
        threading.Event().wait()

    info = cat_file = ls
"""


class Killed(BaseException):
    """The death of the process: an exception that no handler of errors catches."""


class FaultyFileSystem(LocalFileSystem):  # type: ignore[misc]
    """A file system that notes each operation, caches listings like S3's, and has the faults of a test.

    `fault` gets each operation, such as "ls" or "wb", and its path, and may raise an error. `sizes` has false sizes of
    files.
    """

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.fault: Callable[[str, str], None] = lambda operation, path: None
        self.done: list[tuple[str, str]] = []
        self.sizes: dict[str, int] = {}
        self._listed: dict[str, Any] = {}

    def invalidate_cache(self, path: str | None = None) -> None:
        self._listed.clear()

    def _do(self, operation: str, path: str) -> None:
        self.fault(operation, path)
        self.done.append((operation, path))

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        self._do("ls", path)
        found = self._listed.setdefault(path, super().ls(path, detail, **options))
        return [about | {"size": self.sizes.get(Path(about["name"]).name, about["size"])} for about in found]

    def cat_file(self, path: str, **options: Any) -> Any:
        self._do("cat", path)
        return Path(path).read_bytes()[options["start"] : options["end"]]

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        self._do("rm", path)
        super().rm(path, recursive, maxdepth)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self._do(mode, path)
        return super()._open(path, mode, **options)

    def paths(self, operation: str) -> list[str]:
        """Return the name of the file of each noted operation, with its folder."""
        return ["/".join(Path(path).parts[-2:]) for done, path in self.done if done == operation]


class FaultyStore(IndexStore):
    """A store in a folder, and its faults."""

    def __init__(self, folder: Path):
        folder.mkdir(exist_ok=True)
        self.faults = FaultyFileSystem()
        self.folder = folder
        super().__init__(self.faults, str(folder), lambda: None)

    def kill_at(self, number: int) -> None:
        """Let the process die in place of the operation with this number, counted from 1."""
        left = iter(range(number - 1, -1, -1))

        def die(operation: str, path: str) -> None:
            if next(left, 1) == 0:
                raise Killed

        self.faults.fault = die

    def heal(self) -> None:
        """Run all further operations without faults."""
        self.faults.fault, self.faults.sizes, self.faults.done = lambda *_: None, {}, []


def install_hanging_store(folder: Path) -> dict[str, str]:
    """Write a package with a file system whose URLs begin with hanging://; return the environment to use it."""
    (folder / "hanging_store.py").write_text(_HANGING)
    (about := folder / "hanging_store-1.dist-info").mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging-store\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[fsspec.specs]\nhanging = hanging_store:HangingFileSystem\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}
