"""What good clients have in common: they ask again until they know how it ended, and enter it into the ledger."""

import time
from collections.abc import Callable

from chaos_run.answers import Answers, is_right_error
from chaos_run.cases import Case
from chaos_run.ledger import Ledger

#: How long a client waits before it asks again.
AGAIN_S = 0.2

#: Codes after which the same request may succeed.
_PASSING = ("overloaded", "unavailable", "not_ready", "timeout")


class Patience:
    """Shared by all clients of a run. Thread-safe."""

    def __init__(self, answers: Answers, ledger: Ledger):
        self.answers = answers
        self.ledger = ledger
        self.gives_up_s = float("inf")

    def until(self, done: Callable[[], bool]) -> bool:
        """Tries until it is done; False when it is time to give up."""
        while time.monotonic() < self.gives_up_s:
            if done():
                return True
            time.sleep(AGAIN_S)
        return False

    def refused(self, case: Case, what: str, code: str, message: str) -> bool:
        """Whether the error is the end of the case: it is the right answer to some, and a wrong one to others."""
        if is_right_error(case, code):
            self.ledger.answer(case, "", outcome=code)
            return True
        if code in _PASSING:
            self.ledger.refuse(what)
            return False
        self.ledger.answer(case, f"{what}: {code}: {message}")
        return True

    def lost(self, case: Case, job_id: str) -> bool:
        """An accepted job is unknown: there is nothing left to wait for."""
        self.ledger.breach(f"case {case.number} ({case.kind}, {case.route}): the accepted job {job_id} is unknown")
        return True
