"""The progress of a long job, and the function that reports it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Self

#: Largest number of bad rows whose messages a progress contains.
MAX_SHOWN = 10


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The part of a long job that is done.

    `rows` counts all rows of the source that are done. `num_bad` counts bad rows, which were left out, and `first_bad`
    has the messages of the first `MAX_SHOWN` of them. `fraction` is the share of the source's bytes that is done, from
    0 to 1, or None if it is unknown. `step` names the current step, such as "reading" or "embedding". `rows_per_s`
    is the rate, and `eta_s` the seconds left. Both are None if they are unknown; the job itself never reports them.
    """

    rows: int = 0
    num_bad: int = 0
    first_bad: tuple[str, ...] = ()
    fraction: float | None = None
    step: str = ""
    rows_per_s: float | None = None
    eta_s: float | None = None

    def to_map(self) -> dict[str, Any]:
        """Return the values by their names."""
        return asdict(self) | {"first_bad": list(self.first_bad)}

    @classmethod
    def from_map(cls, values: Any) -> Self:
        """Return the progress in a map that `to_map` made. Values of wrong types are left out."""
        given = values if isinstance(values, dict) else {}
        known: dict[str, Any] = {name: given[name] for name, is_right in _CHECKS.items() if is_right(given.get(name))}
        return cls(**known | {"first_bad": tuple(map(str, known.get("first_bad", ())))[:MAX_SHOWN]})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < 2**63


#: A check for each value.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("rows", "num_bad"), lambda value: isinstance(value, int) and value >= 0),
    **dict.fromkeys(("fraction", "rows_per_s", "eta_s"), _is_number),
    "first_bad": lambda value: isinstance(value, list),
    "step": lambda value: isinstance(value, str),
}

#: The function that a long job calls with its progress, at least once a second. The job's process may be killed at any
#: moment, so a job writes everything that it needs for continuing later into its output folder.
Report = Callable[[TaskProgress], None]
