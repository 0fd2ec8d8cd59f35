"""What a run of the benchmarks was asked to do."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from stack import Checkout

from benchmarks.texts import Texts
from shoal.bench import trial
from shoal.bench.trial import Figures, Row, Trial
from shoal.errors import ShoalError
from shoal.settings import Settings


@dataclass(frozen=True)
class Plan:
    """How often and how long to measure, with what texts, and against whom."""

    texts: Texts
    runs: int = 3
    seconds: int = 8
    minutes: int = 10
    against: Sequence[str] = ()
    checkouts: Sequence[Checkout] = ()
    workers: int = 1
    failed: list[str] = field(default_factory=list)

    def interleave(self, scenario: str, trials: Sequence[Trial]) -> list[Row]:
        """The trials in turns. One that fails is noted in `failed` and not run again, and the others go on."""
        guarded = [
            replace(trial, run=partial(self._run, f"{scenario}: {trial.case}, {trial.target}", trial))
            for trial in trials
        ]
        return trial.interleave(scenario, guarded, self.runs, self.seconds, say)

    def _run(self, name: str, trial: Trial, seconds: int, number: int) -> Figures:
        try:
            return trial.run(seconds, number) if name not in self.failed else {}
        except (ShoalError, OSError) as error:
            say(f"{name}: {error}")
            self.failed.append(name)
            return {}


def precisions() -> dict[str, dict[str, str]]:
    """The settings of the default precision, and of int8 where this Shoal has it, by the name that tables use."""
    known = Settings.__dataclass_fields__["precision"].metadata["choices"]
    return {"shoal": {}} | ({"shoal int8": {"SHOAL_PRECISION": "int8"}} if "int8" in known else {})


def say(text: str) -> None:
    """Tells the person who waits; the tables alone go to standard output."""
    print(f"  {text}", file=sys.stderr, flush=True)
