"""The folders of the indexes that a worker serves."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from shoal.contract.keys import NAME
from shoal.errors import IndexCorrupt, IndexNotFound, ShoalError
from shoal.index_folder import CURRENT
from shoal_workers.index.store.copies import read_errors, tell_damage


class IndexFolders:
    """The folders `named` in the settings, by the names of their indexes, and those inside `home`.

    A name in the settings goes before the folder of that name in `home`. If those inside `home` `are_copies`, their
    keeper is told of those that are found damaged.
    """

    def __init__(self, named: Mapping[str, Path], home: Path, are_copies: bool = False):
        self.named = named
        self._home = home
        self._are_copies = are_copies

    def find(self, served: Iterable[Path]) -> dict[str, Path]:
        """Return the folder of each index by its name; those that are `served` if `home` cannot be read now."""
        try:
            inside = {folder.name: folder for folder in self._home.iterdir() if _is_index(folder)}
        except (FileNotFoundError, NotADirectoryError):
            inside = {}
        except OSError:  # a shared folder may not answer for a while
            inside = {folder.name: folder for folder in served if folder.parent == self._home}
        return {**inside, **self.named}

    def copy_errors(self) -> dict[str, str]:
        """Return why copies of indexes cannot be made, by the name of the index."""
        return read_errors(self._home)

    def note(self, name: str, error: ShoalError) -> None:
        """Tell the keeper of copies of a damaged one."""
        if self._are_copies and name not in self.named and isinstance(error, IndexCorrupt | IndexNotFound):
            tell_damage(self._home, name)


def _is_index(folder: Path) -> bool:
    """Return True for the folder of an index, with a name by which it can be served."""
    if folder.name.startswith(".") or not NAME.fullmatch(folder.name):
        return False
    try:
        os.stat(folder / CURRENT)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # reading it will say why
        return True
    return True
