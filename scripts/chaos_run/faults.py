"""The faults: a schedule drawn from a seed, and the breaker that causes them."""

import math
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from chaos_run.deployment import NUM_APIS, NUM_WORKERS, PRODUCERS, Deployment
from chaos_run.proxy import MODES, Link
from chaos_run.recovery import Recovery
from chaos_run.redis_group import RedisGroup
from shoal.errors import NotReady

#: The number of faults of each kind in a deck, and the shortest and longest time of such a fault, in seconds. A worker
#: counts as dead after 3 s, and some of its stops are shorter, some longer. A fault of Redis ends when Redis is started
#: again.
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
    "slow": (2, 2.0, 7.0),
    "tear": (2, 0.3, 1.0),
    "clock ahead": (2, 5.0, 20.0),
    "clock behind": (2, 5.0, 20.0),
    "kill primary": (3, 0.5, 4.0),
    "switch primary": (2, 0, 0),
    "move slot": (2, 0, 0),
}

#: Kinds of faults that only groups of Redis servers can have, each with its groups.
_OF_GROUPS = {
    "kill primary": ("sentinels", "cluster"),
    "switch primary": ("sentinels", "cluster"),
    "move slot": ("cluster",),
}


def kinds_of(group: str) -> list[str]:
    """Return the kinds of faults of a deployment with this group of Redis servers; empty: a single server."""
    if not group:
        return [kind for kind in KINDS if kind not in _OF_GROUPS]
    others = [kind for kind in KINDS if kind not in MODES and not kind.endswith("redis")]
    return [kind for kind in others if group in _OF_GROUPS.get(kind, (group,))]


#: Seconds without another fault before and after `kill worker, alone`, so that its effects have no other cause.
CALM_S, ALONE_S = 4.5, 7.0

#: Share of link faults that hit all links at once, and the longest delay of a piece by a delaying link, in seconds.
SHARE_ALL, DELAY_S = 0.25, 0.05

#: Range of the rate of a slow link in bytes a second, and of the error of a wrong clock in seconds.
SLOW_BYTES_PER_S, CLOCK_S = (50_000, 2_000_000), (10, 4_000)

#: Kinds of faults that set the clock of a process, and the sign of its error.
_SIGNS = {"clock ahead": 1, "clock behind": -1}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault `at_s` after the start. `target` is a process, a link or `all` links; `value` is a share from 0 to 1."""

    at_s: float
    kind: str
    target: str
    seconds: float
    value: float

    @property
    def hinders_workers(self) -> bool:
        """True if a worker, its link or Redis is broken. Workers use Redis's clock, so a wrong clock does not count."""
        return self.kind not in _SIGNS and (self.target in ("redis", "all") or self.target.startswith("worker"))


def schedule(seed: int, first_s: float, last_s: float, every_s: float, kinds: Sequence[str]) -> list[Fault]:
    """Return the faults of a run: shuffled decks with all kinds, dealt one by one, `every_s` apart on average."""
    random = Random(f"faults {seed}")
    faults: list[Fault] = []
    deck: list[str] = []
    at_s = first_s + random.uniform(0, every_s)
    while at_s < last_s:
        if not deck:
            deck = [kind for kind in kinds for _ in range(KINDS[kind][0])]
            random.shuffle(deck)
        kind = deck.pop()
        if kind == "kill worker, alone":
            at_s = max([at_s, *(fault.at_s + fault.seconds + CALM_S for fault in faults)])
        seconds = random.uniform(*KINDS[kind][1:])
        faults.append(Fault(at_s, kind, _target(random, kind), seconds, random.random()))
        at_s += ALONE_S if kind == "kill worker, alone" else random.expovariate(1 / every_s)
    return faults


def _target(random: Random, kind: str) -> str:
    worker, api = f"worker {random.randint(1, NUM_WORKERS)}", f"api {random.randint(1, NUM_APIS)}"
    if kind in MODES:
        return "all" if random.random() < SHARE_ALL else random.choice((worker, worker, api, PRODUCERS))
    return worker if "worker" in kind or "clock" in kind else api if "api" in kind else "redis"


def _between(bounds: tuple[float, float], share: float) -> float:
    """Return the value between the bounds that is at this share of their distance on a logarithmic scale."""
    return bounds[0] * math.pow(bounds[1] / bounds[0], share)


class Breaker:
    """Causes a schedule's faults at their times, mends them, and notes them in `recovery`. Not thread-safe."""

    def __init__(self, deployment: Deployment, faults: Sequence[Fault], recovery: Recovery):
        self.done: Counter[str] = Counter()
        self.skipped = 0
        self._deployment, self._recovery = deployment, recovery
        self._left = list(faults)
        self._open: list[tuple[float, Fault]] = []

    @property
    def is_done(self) -> bool:
        """True if nothing is left to break or to mend."""
        return not self._left and not self._open

    def step(self, now_s: float) -> None:
        """Cause the faults that are due `now_s` after the start, and mend the faults whose time is over."""
        while self._left and self._left[0].at_s <= now_s:
            fault = self._left.pop(0)
            if self._break(fault):
                self.done[fault.kind] += 1
                self._open.append((now_s + fault.seconds, fault))
                if fault.hinders_workers:
                    self._recovery.note_fault(fault.seconds)
            else:
                self.skipped += 1
        for ends_s, fault in list(self._open):
            if ends_s <= now_s:
                self._open.remove((ends_s, fault))
                for link in self._links(fault):
                    link.set("pass")
                if fault.kind.startswith("stop"):
                    process = self._deployment.processes[fault.target]
                    process.is_stopped = False
                    process.send(signal.SIGCONT)
                if fault.kind in _SIGNS:
                    self._deployment.set_clock(fault.target, 0.0)

    def _break(self, fault: Fault) -> bool:
        """Cause the fault; return False if its target is already broken."""
        if fault.kind in _SIGNS:
            return self._break_clock(fault)
        if self._deployment.group and fault.target == "redis":
            return self._fail_over(fault, self._deployment.group)
        return self._break_links(fault) if fault.kind in MODES else self._break_process(fault)

    def _fail_over(self, fault: Fault, group: RedisGroup) -> bool:
        """Make another server of the group the primary; return False while the group is not complete."""
        if not group.is_complete():
            return False
        try:
            if fault.kind.startswith("move"):
                group.move(key_by_key=False)
            elif fault.kind == "switch primary":
                group.switch()
            else:
                with group.in_step() as name:
                    process = self._deployment.processes[name]
                    process.told_to, process.told_s, process.restart_after_s = "kill", time.monotonic(), fault.seconds
                    process.send(signal.SIGKILL)
        except NotReady:  # a replica has just lost its primary
            return False
        return True

    def _break_clock(self, fault: Fault) -> bool:
        if any(other.kind in _SIGNS and other.target == fault.target for _, other in self._open):
            return False
        self._deployment.set_clock(fault.target, _SIGNS[fault.kind] * _between(CLOCK_S, fault.value))
        return True

    def _break_process(self, fault: Fault) -> bool:
        process = self._deployment.processes[fault.target]
        if process.ended_s is not None or process.told_to or process.is_stopped:
            return False
        action = fault.kind.partition(" ")[0]
        if action == "stop":
            process.is_stopped = True
            process.send(signal.SIGSTOP)
            return True
        process.told_to, process.told_s = {"kill": "kill", "restart": "stop"}[action], time.monotonic()
        if action == "restart" or fault.target == "redis":
            process.restart_after_s = fault.seconds
        # Only the process itself gets the signal. Its children must notice its end.
        os.kill(process.pid, signal.SIGKILL if action == "kill" else signal.SIGTERM)
        if fault.kind.startswith("kill worker"):
            self._recovery.note_kill(process.pid)
        return True

    def _break_links(self, fault: Fault) -> bool:
        links = self._links(fault)
        if any(link in self._links(other) for _, other in self._open for link in links):
            return False
        values = {"delay": fault.value * DELAY_S, "slow": _between(SLOW_BYTES_PER_S, fault.value)}
        for link in links:
            link.set(fault.kind, values.get(fault.kind, fault.value))
        return True

    def _links(self, fault: Fault) -> list[Link]:
        """Return the links that the fault breaks."""
        links = self._deployment.links
        return [] if fault.kind not in MODES else [links[fault.target]] if fault.target in links else [*links.values()]
