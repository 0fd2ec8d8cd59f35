"""Preemption: what long and bulk jobs may take at a time while interactive jobs are expected, which would wait."""

import time
from collections.abc import Callable

from shoal_workers.encoding.pipeline import Pipeline
from shoal_workers.operations.work import INTERACTIVE

#: Time after the last interactive job in which more of them are expected, in seconds.
EXPECTED_S = 1.0

#: Longest that a pass of long or bulk jobs that runs aside should take, by the speed of the passes before, in seconds.
MAX_ASIDE_S = 0.1

#: Longest that such a pass should take, in seconds, where it cannot run aside: interactive jobs wait for its end.
MAX_PREEMPTIBLE_S = 0.012

#: Tokens that such a pass may have however slow passes are.
MIN_PREEMPTIBLE_TOKENS = 64


class Preemption:
    """The limits of long and bulk jobs for the sake of interactive ones. For one thread.

    `has_come` returns True while an interactive job is to be taken.
    """

    def __init__(self, has_come: Callable[[], bool] = lambda: False):
        self.has_come = has_come
        self._expected_until = 0.0

    def expect(self) -> None:
        """Expect more interactive jobs for a while, as there is one."""
        self._expected_until = time.monotonic() + EXPECTED_S

    @property
    def is_expected(self) -> bool:
        """True for a while after an interactive job."""
        return time.monotonic() < self._expected_until

    def max_cost(self, kind: str, pipeline: Pipeline) -> float | None:
        """Return the most that a pass of the kind may cost; None for as much as fits."""
        if kind == INTERACTIVE or not self.is_expected:
            return None
        least = MIN_PREEMPTIBLE_TOKENS + pipeline.bucketing.pass_cost
        return max(least, pipeline.cost_within(MAX_ASIDE_S if pipeline.encoder.runs_aside else MAX_PREEMPTIBLE_S))
