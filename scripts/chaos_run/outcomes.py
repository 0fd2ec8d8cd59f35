"""The outcomes of all cases, kept until the end."""

from collections import Counter
from dataclasses import dataclass, field

from chaos_run.cases import Case


@dataclass(slots=True)
class Outcomes:
    """Accepted jobs by id, a word for each answer and refusal, and the promises that were broken or kept late.

    `puts` counts how often a case was put into Redis; `unfinished` has the numbers of cases that were asked. All
    threads may add: a case is of one thread, and lists are only appended to.
    """

    accepted: dict[str, Case] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    puts: Counter[int] = field(default_factory=Counter)
    unfinished: set[int] = field(default_factory=set)

    def answer(self, case: Case, wrong: str, outcome: str = "right") -> None:
        """Note an answer, and what is wrong with it."""
        self.answered.append("wrong" if wrong else outcome)
        if wrong:
            self.breach(case, wrong)

    def breach(self, case: Case, what: str) -> None:
        """Note a broken promise to a client."""
        self.broken.append(f"case {case.number} ({case.kind}, {case.route}): {what}")
