"""The progress of a long job, and the function that reports it."""

from collections.abc import Callable
from dataclasses import dataclass

#: Largest number of bad rows whose messages a progress contains.
MAX_SHOWN = 10


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The part of a long job that is done.

    `rows` counts all rows of the source that are done. `num_bad` counts bad rows, which were left out, and `first_bad`
    has the messages of the first `MAX_SHOWN` of them. `fraction` is the share of the source's bytes that is done, from
    0 to 1, or None if it is unknown. `step` names the current step, such as "reading" or "embedding".
    """

    rows: int = 0
    num_bad: int = 0
    first_bad: tuple[str, ...] = ()
    fraction: float | None = None
    step: str = ""


#: The function that a long job calls with its progress, at least once a second. The job's process may be killed at any
#: moment, so a job writes everything that it needs for continuing later into its output folder.
Report = Callable[[TaskProgress], None]
