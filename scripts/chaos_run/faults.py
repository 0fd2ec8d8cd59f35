"""What is broken, when, and for how long: a schedule drawn from a seed, and the hand that does it."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from chaos_run.proxy import MODES, PRODUCERS

if TYPE_CHECKING:
    from chaos_run.stack import Supervisor, Watched

#: Each kind of fault: how many of it are in a deck, and the least and most seconds that it lasts. Stops of a worker are
#: shorter and longer than the 3 s after which it counts as dead. For Redis it is the time until it is started again.
KINDS: dict[str, tuple[int, float, float]] = {
    "kill worker": (4, 0, 0),
    "kill worker, alone": (2, 0, 0),
    "stop worker shortly": (2, 0.3, 2.0),
    "stop worker long": (2, 4.0, 7.0),
    "restart worker": (2, 0, 0),
    "kill api": (2, 0, 0),
    "stop api": (1, 0.5, 4.0),
    "restart api": (1, 0, 0),
    "kill redis": (1, 0.1, 2.0),
    "stop redis": (1, 0.5, 3.0),
    "restart redis": (1, 0.1, 1.0),
    "cut": (2, 0, 0),
    "refuse": (1, 0.5, 4.0),
    "swallow": (2, 1.0, 7.0),
    "stall": (1, 0.5, 5.0),
    "delay": (1, 2.0, 5.0),
    "tear": (2, 0.3, 1.0),
}

#: After a worker is killed alone, nothing else breaks for so long: what comes of it is then its doing.
ALONE_S = 7.0

#: Share of broken links where all links break at once.
SHARE_ALL = 0.25


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that breaks. `target` is a process or a link, or `all` links; `value` is a share from 0 to 1."""

    at_s: float
    kind: str
    target: str
    seconds: float
    value: float


def schedule(seed: int, seconds: float, every_s: float, kinds: Sequence[str], num_workers: int) -> list[Fault]:
    """The faults of a run: decks of all kinds, shuffled and dealt one after another, `every_s` apart on average."""
    random = Random(f"faults {seed}")
    faults: list[Fault] = []
    deck: list[str] = []
    at_s = random.uniform(0, every_s)
    while at_s < seconds:
        if not deck:
            deck = [kind for kind in kinds for _ in range(KINDS[kind][0])]
            random.shuffle(deck)
        kind = deck.pop()
        if kind == "kill worker, alone":
            at_s = max([at_s, *(fault.at_s + fault.seconds + 2 for fault in faults)])
        _, least, most = KINDS[kind]
        fault = Fault(at_s, kind, _target(random, kind, num_workers), random.uniform(least, most), random.random())
        faults.append(fault)
        at_s += ALONE_S if kind == "kill worker, alone" else random.expovariate(1 / every_s)
    return faults


def _target(random: Random, kind: str, num_workers: int) -> str:
    worker, api = f"worker {random.randint(1, num_workers)}", f"api {random.randint(1, 2)}"
    if kind in MODES:
        return "all" if random.random() < SHARE_ALL else random.choice((worker, worker, api, PRODUCERS))
    return worker if "worker" in kind else api if "api" in kind else "redis"


class Breaker:
    """Does the faults of a schedule as their time comes, and undoes them. Called from one thread."""

    def __init__(self, stack: "Supervisor", faults: Sequence[Fault], on_kill: Callable[[int, bool], None]):
        self.done: Counter[str] = Counter()
        self.skipped = 0
        self._stack = stack
        self._left = sorted(faults, key=lambda fault: fault.at_s)
        self._open: list[tuple[float, Fault]] = []
        self._broken_links: Counter[str] = Counter()
        self._on_kill = on_kill

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to break or to mend."""
        return not self._left and not self._open

    def step(self, now_s: float) -> None:
        """Breaks what is due `now_s` after the start, and mends what was broken long enough."""
        while self._left and self._left[0].at_s <= now_s:
            fault = self._left.pop(0)
            if self._begin(fault):
                self.done[fault.kind] += 1
                self._open.append((now_s + fault.seconds, fault))
            else:
                self.skipped += 1
        for ends_s, fault in list(self._open):
            if ends_s <= now_s:
                self._open.remove((ends_s, fault))
                self._end(fault)

    def _begin(self, fault: Fault) -> bool:
        if fault.kind in MODES:
            return self._break_link(fault)
        watched = self._stack.services[fault.target]
        if not watched.is_up:
            return False
        action = fault.kind.partition(" ")[0]
        {"kill": self._kill, "stop": self._stop, "restart": self._restart}[action](watched, fault)
        return True

    def _kill(self, watched: "Watched", fault: Fault) -> None:
        watched.told_to = "kill"
        if watched is self._stack.redis:
            watched.restart_after_s = fault.seconds
        os.kill(watched.pid, signal.SIGKILL)  # the processes that it started are on their own
        if "worker" in fault.kind:
            self._on_kill(watched.pid, "alone" in fault.kind)

    def _stop(self, watched: "Watched", fault: Fault) -> None:
        watched.is_stopped = True
        watched.send(signal.SIGSTOP)

    def _restart(self, watched: "Watched", fault: Fault) -> None:
        watched.told_to, watched.told_s, watched.restart_after_s = "stop", time.monotonic(), fault.seconds
        os.kill(watched.pid, signal.SIGTERM)

    def _break_link(self, fault: Fault) -> bool:
        links = list(self._stack.ports) if fault.target == "all" else [fault.target]
        if any(self._broken_links[link] for link in links):
            return False
        for link in links:
            self._broken_links[link] += 1
            value = fault.value / 20 if fault.kind == "delay" else fault.value
            self._stack.order(link, fault.kind, value)
        return True

    def _end(self, fault: Fault) -> None:
        if fault.kind in MODES:
            for link in list(self._stack.ports) if fault.target == "all" else [fault.target]:
                self._broken_links[link] -= 1
                self._stack.order(link, "pass")
        elif fault.kind.startswith("stop"):
            watched = self._stack.services[fault.target]
            watched.is_stopped = False
            watched.send(signal.SIGCONT)
