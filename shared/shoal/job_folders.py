"""The folders of long jobs that came over HTTP. Each contains an upload, a result, or both.

The API makes the folders, and the runner writes results into them.
"""

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from shoal.errors import DiskFull
from shoal.settings import Settings
from shoal.task_progress import Report, TaskProgress

#: The folder, in the folder for files, that has a subfolder for each pool.
JOBS = "jobs"

#: The name of the folder with a job's result, in the folder of the job.
RESULT = "vectors"

#: Seconds between two checks of the space that all results need, while a job writes its result.
LOOK_EVERY_S = 10.0

_OWNER_BYTES = 6
_FOLDER_NAME = re.compile(rf"[0-9a-f]{{{2 * _OWNER_BYTES}}}-[0-9a-f]{{24}}")


class JobFolders:
    """The folders of a pool. The name of a folder begins with the name of its owner, a client."""

    def __init__(self, settings: Settings):
        #: The path of the pool's folders, relative to the folder for files.
        self.place = f"{JOBS}/{short_name(settings.keys.root)}"
        self.folder = settings.files_folder / self.place
        self._max_result_bytes = settings.max_results_mb * 2**20

    def names(self) -> list[str]:
        """Return the names of all folders."""
        with suppress(FileNotFoundError):
            return [name for name in os.listdir(self.folder) if _FOLDER_NAME.fullmatch(name)]
        return []

    def owner_of(self, path: str) -> str:
        """Return the owner of the job's folder that contains the path, or "" if the path is in no job's folder."""
        with suppress(ValueError):
            name, *_ = Path(path).relative_to(self.folder.resolve()).parts or ("",)
            return name.partition("-")[0] if _FOLDER_NAME.fullmatch(name) else ""
        return ""

    def sizes(self, owner: str, size_of: Callable[[Path], int]) -> tuple[int, int]:
        """Return the sum of the sizes of all folders, and the sum for the owner's folders."""
        sizes = {name: size_of(self.folder / name) for name in self.names()}
        return sum(sizes.values()), sum(size for name, size in sizes.items() if owner and name.startswith(owner))

    def check_results(self, owner: str) -> None:
        """Raise DiskFull if all results, or the owner's results, need too much space.

        One owner's results may need at most the space that all results together leave free.
        """
        used_bytes, owned_bytes = self.sizes(owner, _result_bytes)
        if owned_bytes > self._max_result_bytes - used_bytes:
            raise DiskFull(
                f"results of jobs take {used_bytes:,} of {self._max_result_bytes:,} bytes (SHOAL_MAX_RESULTS_MB), "
                f"{owned_bytes:,} of them for this client: delete jobs whose results are fetched, then try again"
            )

    def limited(self, owner: str, report: Report, clock: Callable[[], float] = time.monotonic) -> Report:
        """Return a function that calls `report` and, every `LOOK_EVERY_S`, `check_results`. It may raise DiskFull."""
        due_s = clock()

        def report_and_check(progress: TaskProgress) -> None:
            nonlocal due_s
            report(progress)
            if clock() >= due_s:
                due_s = clock() + LOOK_EVERY_S
                self.check_results(owner)

        return report_and_check


def short_name(text: str) -> str:
    """Return the digest that stands for a client or a pool in the names of folders."""
    return blake2b(text.encode(), digest_size=_OWNER_BYTES).hexdigest()


def file_size(file: Path | os.DirEntry[str]) -> int:
    """Return the size of a file in bytes, or 0 if it is gone. It may have been renamed since its folder was read."""
    with suppress(FileNotFoundError):
        return file.stat(follow_symlinks=False).st_size
    return 0


def _result_bytes(folder: Path) -> int:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder / RESULT) as files:
        return sum(map(file_size, files))
    return 0
