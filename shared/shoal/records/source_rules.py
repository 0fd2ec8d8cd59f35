"""The rules by which a source is opened."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shoal.settings import Settings


@dataclass(frozen=True, slots=True)
class SourceRules:
    """Rules for the place of a source, which depend on the settings of the process that opens it.

    Web addresses in private networks are refused unless their host is one of `private_hosts`, and so are redirects that
    lead from below the `root_urls` elsewhere, and links from below the `root_folders`.
    """

    private_hosts: Collection[str] = ()
    root_urls: Collection[str] = ()
    root_folders: Collection[Path] = ()

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the rules of the settings. Raises BadSetting for `roots` that are none."""
        return cls(settings.private_host_names(), settings.root_urls(), settings.root_folders())
