"""The clients: threads that ask the cases, each when it is time."""

import time
from collections.abc import Callable, Iterator, Sequence
from threading import Lock, Thread

from chaos_run.answers import Answers
from chaos_run.cases import Case
from chaos_run.http_ways import HttpWays
from chaos_run.ledger import Ledger
from chaos_run.patience import Patience
from chaos_run.proxy import PRODUCERS
from chaos_run.redis_ways import RedisWays
from chaos_run.stack import Supervisor


class Clients:
    """So many good clients."""

    def __init__(self, stack: Supervisor, answers: Answers, ledger: Ledger, cases: Sequence[Case], num_threads: int):
        self._ledger = ledger
        self._patience = Patience(answers, ledger)
        http = HttpWays(list(stack.api_ports.values()), self._patience)
        self._direct = RedisWays(stack.url_of(PRODUCERS), stack.settings, self._patience)
        self._ways: dict[str, Callable[[Case], bool]] = {
            "wait": http.wait,
            "submit": http.submit,
            "cancelled": http.cancel,
            "leaving": http.leave,
            "call": self._direct.call,
            "handle": self._direct.handle,
            "plain": self._direct.plain,
            "address": self._direct.address,
            "expired": self._direct.expire,
            "malformed": self._direct.malform,
        }
        self._cases: Iterator[Case] = iter(cases)
        self._lock = Lock()
        self._started_s = 0.0
        self._threads = [Thread(target=self._run, daemon=True) for _ in range(num_threads)]

    def start(self) -> None:
        """Starts to ask."""
        self._started_s = time.monotonic()
        for thread in self._threads:
            thread.start()

    @property
    def are_busy(self) -> bool:
        """Whether any of them has something left to do."""
        return any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Ends those that still wait."""
        self._patience.gives_up_s = 0.0
        for thread in self._threads:
            if thread.ident:
                thread.join(30)
        self._direct.close()

    def _run(self) -> None:
        while case := self._next():
            self._ledger.begin(case)
            try:
                if (self._ways.get(case.kind) or self._ways[case.route])(case):
                    self._ledger.finish(case)
            except Exception as error:  # of these scripts: it must not pass for a lost job
                self._ledger.breach(f"the client of case {case.number} failed: {error!r}")

    def _next(self) -> Case | None:
        """The next case, when it is time for it; none when there are no more."""
        with self._lock:
            case = next(self._cases, None)
        if case:
            time.sleep(max(0.0, self._started_s + case.at_s - time.monotonic()))
        return case
