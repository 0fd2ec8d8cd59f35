"""The progress of a long job, and the call by which the job reports it."""

from collections.abc import Callable
from dataclasses import dataclass

#: Most messages of bad rows that a progress holds.
MAX_SHOWN = 10


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The part of a long job that is done.

    `rows` counts the rows of the source that are done, bad ones included; `num_bad` those that were left out, and
    `first_bad` has the messages of the first `MAX_SHOWN` of them. `fraction` is the part of the source's bytes that is
    done, from 0 to 1, or None if it is not known. `step` names the work under way, as "reading" or "embedding".
    """

    rows: int = 0
    num_bad: int = 0
    first_bad: tuple[str, ...] = ()
    fraction: float | None = None
    step: str = ""


#: The call with which a long job reports its progress, at least once a second while it works. A job keeps in its output
#: folder all that it needs to go on when it is started again: its process may be killed at any moment.
Report = Callable[[TaskProgress], None]
