"""Lanes: the sources of a lane, its limits, and its load."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from shoal.jobs import LANES
from shoal.settings import DEFAULTS, Settings

#: Tokens that the overflow of a lane is served for each token of its front while both wait.
OVERFLOW_SHARE = 1 / 4

#: Texts that one client may have at the front of a lane: two passes, for which other clients wait. The rest goes to the
#: overflow, and so does a job of more than a quarter of it.
MAX_FRONT_TEXTS = 128

#: Bytes of jobs that one client may have at the front of a lane, in the same way: 2 KiB for each of these texts.
MAX_FRONT_BYTES = 2_048 * MAX_FRONT_TEXTS

#: Most bytes of the jobs of one put, and so of a job: Redis serves no other client while it reads and copies them.
MAX_PUT_BYTES = 32 * 2**20


class Source(NamedTuple):
    """A stream that workers take jobs from: the front of a lane, or its overflow."""

    lane: str
    is_overflow: bool = False


#: All sources, in the order in which workers read them.
SOURCES = tuple(Source(lane, is_overflow) for lane in LANES for is_overflow in (False, True))


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
        """Return the limits as the script `put` takes them, and as workers announce them."""
        return {  # written out: every put has it, and `asdict` takes ten times as long
            "max_jobs": self.max_jobs,
            "max_texts": self.max_texts,
            "max_bytes": self.max_bytes,
            "max_unread_bytes": self.max_unread_bytes,
            "max_front_texts": MAX_FRONT_TEXTS,
            "max_front_bytes": MAX_FRONT_BYTES,
            "max_put_bytes": MAX_PUT_BYTES,
        }


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """The unanswered jobs that a lane holds, and the time since the first of them was put.

    Of an overflow, the jobs that workers hold or take next are looked at for that time, and those that wait are not.
    """

    num_jobs: int
    num_texts: int
    num_bytes: int
    oldest_age_s: float = 0.0

    def fill(self, limits: LaneLimits) -> float:
        """Return the share that is taken of the limit on jobs, texts or bytes, whichever is the largest."""
        return max(
            self.num_jobs / limits.max_jobs, self.num_texts / limits.max_texts, self.num_bytes / limits.max_bytes
        )
