"""What a lane may hold, and what it holds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """What a lane may hold of jobs that are not answered yet."""

    max_jobs: int = 10_000
    max_texts: int = 100_000
    max_bytes: int = 256 * 2**20


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """What a lane holds of jobs that are not answered yet."""

    num_jobs: int
    num_texts: int
    num_bytes: int
