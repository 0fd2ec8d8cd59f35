"""What the clients were told, kept until the end."""

from collections import Counter
from dataclasses import dataclass, field
from threading import Lock

from chaos_run.cases import Case


@dataclass(slots=True)
class Ledger:
    """Accepted jobs, answers and refusals. Thread-safe."""

    accepted: dict[str, Case] = field(default_factory=dict)
    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    puts: Counter[int] = field(default_factory=Counter)
    unfinished: set[int] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def begin(self, case: Case) -> None:
        """The case is being asked."""
        with self._lock:
            self.unfinished.add(case.number)

    def finish(self, case: Case) -> None:
        """The case is over."""
        with self._lock:
            self.unfinished.discard(case.number)

    def accept(self, case: Case, job_id: str) -> None:
        """A job was accepted: from now on it must be answered."""
        with self._lock:
            self.accepted[job_id] = case

    def answer(self, case: Case, wrong: str, outcome: str = "right") -> None:
        """An answer came, and what is wrong with it."""
        with self._lock:
            self.answered["wrong" if wrong else outcome] += 1
        if wrong:
            self.breach(f"case {case.number} ({case.kind}, {case.route}): {wrong}")

    def refuse(self, why: str) -> None:
        """A request was not accepted, and will be made again."""
        with self._lock:
            self.refused[why] += 1

    def put(self, case: Case) -> None:
        """The case is put into Redis, perhaps not for the first time."""
        with self._lock:
            self.puts[case.number] += 1

    def breach(self, what: str) -> None:
        """A promise was broken."""
        with self._lock:
            self.broken.append(what)
