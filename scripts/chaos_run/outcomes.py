"""The outcomes of all cases, kept until the end, and the table of a run."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from threading import Lock
from typing import Any

from chaos_run.cases import Case


@dataclass(slots=True)
class Outcomes:
    """Accepted jobs by id, counts of answers and refusals, promises that were broken or kept late. Thread-safe.

    `puts` counts how often a case was put into Redis; `unfinished` has the numbers of cases that were asked.
    """

    accepted: dict[str, Case] = field(default_factory=dict)
    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    puts: Counter[int] = field(default_factory=Counter)
    unfinished: set[int] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def accept(self, case: Case, job_id: str) -> None:
        """Note an accepted job: from now on it must be answered."""
        with self._lock:
            self.accepted[job_id] = case

    def answer(self, case: Case, wrong: str, outcome: str = "right") -> None:
        """Note an answer, and what is wrong with it."""
        with self._lock:
            self.answered["wrong" if wrong else outcome] += 1
        if wrong:
            self.breach(f"case {case.number} ({case.kind}, {case.route}): {wrong}")

    def refuse(self, why: str) -> None:
        """Note a request that was not accepted and will be made again."""
        with self._lock:
            self.refused[why] += 1

    def put(self, case: Case) -> None:
        """Note that the case is put into Redis, perhaps not for the first time."""
        with self._lock:
            self.puts[case.number] += 1

    def breach(self, what: str) -> None:
        """Note a broken promise."""
        with self._lock:
            self.broken.append(what)


def table(rows: Iterable[tuple[str, Any]]) -> str:
    """Return two columns of Markdown."""
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def counts(found: Mapping[str, int]) -> str:
    """Return numbers by name, the largest first."""
    items = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{number:,} {name}" for name, number in items) or "none"


def times(seconds: list[float]) -> str:
    """Return the median and the maximum of times."""
    if not seconds:
        return "none"
    return f"median {median(seconds):.1f} s, longest {max(seconds):.1f} s, of {len(seconds)}"
