"""The rules by which a source is opened."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shoal.job_folders import JOBS
from shoal.settings import Settings


@dataclass(frozen=True, slots=True)
class SourceRules:
    """Rules for the place of a source, which depend on the settings of the process that opens it.

    Web addresses in private networks are refused unless their host is one of `private_hosts`, and so are redirects that
    lead from below the `root_urls` elsewhere, and links from below the `root_folders`. The files below `uploads` are of
    clients that know their names: it is no source as a folder, and no part of one.
    """

    private_hosts: Collection[str] = ()
    root_urls: Collection[str] = ()
    root_folders: Collection[Path] = ()
    uploads: Path | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the rules of the settings. Raises BadSetting for `roots` that are none."""
        uploads = settings.files_folder / JOBS
        return cls(settings.private_host_names(), settings.root_urls(), settings.root_folders(), uploads.resolve())

    def is_closed(self, folder: Path | str) -> bool:
        """Return True for the folder of uploads, and any below it."""
        return self.uploads is not None and Path(folder).resolve().is_relative_to(self.uploads)
