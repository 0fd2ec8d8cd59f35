"""What a lane may hold, and what it holds."""

from dataclasses import dataclass
from typing import Self

from shoal.settings import DEFAULTS, Settings


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """The most unanswered jobs that a lane may hold, and the most texts and bytes in them."""

    max_jobs: int = DEFAULTS.max_backlog
    max_texts: int = DEFAULTS.max_backlog_texts
    max_bytes: int = DEFAULTS.max_backlog_mb * 2**20

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the limits that the settings set."""
        return cls(settings.max_backlog, settings.max_backlog_texts, settings.max_backlog_mb * 2**20)


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """What a lane holds of jobs that are not answered yet."""

    num_jobs: int
    num_texts: int
    num_bytes: int
