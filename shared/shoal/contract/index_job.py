"""Jobs for an index, which they name."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.contract.checks import check_string
from shoal.contract.jobs import Job


@dataclass(frozen=True, slots=True)
class IndexJob(Job):
    """A job for the index of that name."""

    index: str = "default"

    own_names: ClassVar[tuple[str, ...]] = ("index",)

    def _check(self) -> None:
        check_string("index", self.index, "the name of an index")

    @property
    def is_plain(self) -> bool:
        """True for a search without options."""
        return False

    @property
    def cursor(self) -> str | None:
        """The cursor of a page, which names the version that it is of; None where no page is asked for."""
        return None
