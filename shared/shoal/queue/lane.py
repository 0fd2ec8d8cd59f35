"""Lanes: their limits, and their load; and the load of results that were not read."""

from dataclasses import asdict, dataclass
from typing import NamedTuple, Self

from shoal.settings import DEFAULTS, Settings

#: Most bytes of the jobs of one put, and so of a job: Redis serves no other client while it reads and copies them.
MAX_PUT_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """The most unanswered jobs that a lane may hold, and the most texts and bytes in them.

    `max_unread_bytes` is the most that the results of submitted jobs may have, in all lanes, until they are read.
    """

    max_jobs: int = DEFAULTS.max_backlog
    max_texts: int = DEFAULTS.max_backlog_texts
    max_bytes: int = DEFAULTS.max_backlog_mb * 2**20
    max_unread_bytes: int = DEFAULTS.max_result_mb * 2**20

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the limits that the settings set."""
        return cls(
            settings.max_backlog,
            settings.max_backlog_texts,
            settings.max_backlog_mb * 2**20,
            settings.max_result_mb * 2**20,
        )

    def to_map(self) -> dict[str, int]:
        """Return the limits as workers announce them, for all producers."""
        return asdict(self) | {"max_put_bytes": MAX_PUT_BYTES}


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """The unanswered jobs that a lane holds, and the time since the first of them was put."""

    num_jobs: int
    num_texts: int
    num_bytes: int
    oldest_age_s: float = 0.0

    def fill(self, limits: LaneLimits) -> float:
        """Return the share that is taken of the limit on jobs, texts or bytes, whichever is the largest."""
        return max(
            self.num_jobs / limits.max_jobs, self.num_texts / limits.max_texts, self.num_bytes / limits.max_bytes
        )


class UnreadLoad(NamedTuple):
    """The number of results that were not read, and their bytes, with their keys and idempotency keys."""

    num_results: int
    num_bytes: int
