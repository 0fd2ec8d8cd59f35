"""A simulation of larger machines: the requests a second that API processes, Redis and workers reach on so many cores.

A discrete-event model with costs that were measured on two cores. Work that is ready shares the cores evenly. It knows
no memory bandwidth, no second socket and no network: docs/experiments.md says what that means.
"""

import argparse
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count


@dataclass(frozen=True)
class Costs:
    """Processor time in milliseconds: of a request of one headline, and of a pass of one thread of the engine.

    They are of the engine avx512 in bf16, on two cores of Zen 4. docs/experiments.md says which run measured each.
    """

    load: float = 0.059
    api: float = 0.589
    redis: float = 0.12
    worker: float = 0.21
    text: float = 1.07
    thread_pass: float = 1.07


@dataclass(frozen=True)
class Layout:
    """Processes on a machine of so many cores; a worker takes at most `max_batch_texts` for a pass."""

    cores: int
    api_processes: int
    workers: int
    threads: int
    max_batch_texts: int = 32


class Machine:
    """Cores that all work shares which is ready. Time is in milliseconds."""

    def __init__(self, cores: int):
        self.now = 0.0
        self._cores = cores
        self._num_busy = 0
        self._done_each = 0.0
        self._ends: list[tuple[float, int, int, Callable[[], None]]] = []
        self._numbers = count()

    def start(self, work: float, then: Callable[[], None], threads: int = 1) -> None:
        """Begin with `work` milliseconds of work for each of the threads; call `then` at its end."""
        self._num_busy += threads
        heapq.heappush(self._ends, (self._done_each + work, next(self._numbers), threads, then))

    def step(self) -> None:
        """Go on to the next end of some work."""
        end, _, threads, then = heapq.heappop(self._ends)
        self.now += (end - self._done_each) * max(1.0, self._num_busy / self._cores)
        self._done_each = end
        self._num_busy -= threads
        then()


class Process:
    """A process that does one thing at a time: an API process, which has one interpreter's lock, or Redis."""

    def __init__(self, machine: Machine):
        self._machine = machine
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._is_busy = False

    def do(self, work: float, then: Callable[[], None]) -> None:
        """Do the work when it is its turn, then call `then`."""
        self._waiting.append((work, then))
        if not self._is_busy:
            self._next()

    def _next(self) -> None:
        self._is_busy = bool(self._waiting)
        if self._is_busy:
            work, then = self._waiting.popleft()
            self._machine.start(work, lambda: self._end(then))

    def _end(self, then: Callable[[], None]) -> None:
        self._next()
        then()


class Service:
    """Clients that each wait for an answer and ask again, and all that answers them."""

    def __init__(self, costs: Costs, layout: Layout, connections: int):
        self.machine, self.num_answered = Machine(layout.cores), 0
        self._costs, self._layout = costs, layout
        self._apis = [Process(self.machine) for _ in range(layout.api_processes)]
        self._redis = Process(self.machine)
        self._queue: deque[Process] = deque()
        self._idle = list(range(layout.workers))
        for number in range(connections):
            self._ask(self._apis[number % layout.api_processes])

    def _ask(self, api: Process) -> None:
        half = self._costs.redis / 2
        put = lambda: self._redis.do(half, lambda: self._put(api))  # noqa: E731
        self.machine.start(self._costs.load, lambda: api.do(self._costs.api / 2, put))

    def _put(self, api: Process) -> None:
        self._queue.append(api)
        if self._idle:
            self._compute(self._idle.pop(), [])

    def _compute(self, worker: int, before: list[Process]) -> None:
        """Take texts and compute them, and answer meanwhile those of the pass before."""
        size = min(len(self._queue), self._layout.max_batch_texts)
        texts = [self._queue.popleft() for _ in range(size)]
        threads = max(1, min(self._layout.threads, size))
        if not texts and not before:
            self._idle.append(worker)
            return
        ends = count(1)

        def end() -> None:
            if next(ends) == 2:
                self._compute(worker, texts)

        def encode() -> None:
            each = self._costs.thread_pass + self._costs.text * size / threads if texts else 0.0
            self.machine.start(each, end, threads)
            self.machine.start(self._costs.worker / 2 * len(before), lambda: self._answer(before, end))

        self.machine.start(self._costs.worker / 2 * size, encode)

    def _answer(self, texts: list[Process], then: Callable[[], None]) -> None:
        for api in texts:
            self._redis.do(self._costs.redis / 2, partial(api.do, self._costs.api / 2, partial(self._end, api)))
        then()

    def _end(self, api: Process) -> None:
        self.num_answered += 1
        self._ask(api)


def rate(costs: Costs, layout: Layout, connections: int, seconds: float = 2.0) -> float:
    """Return the requests a second after a second in which the service settles."""
    service = Service(costs, layout, connections)
    while service.machine.now < 1_000:
        service.machine.step()
    num_before, since = service.num_answered, service.machine.now
    while service.machine.now < since + 1_000 * seconds:
        service.machine.step()
    return 1_000 * (service.num_answered - num_before) / (service.machine.now - since)


#: Least milliseconds that Redis works for a request, reached when one round trip carries many jobs.
BEST_REDIS = 0.04

#: The layouts of docs/experiments.md.
LAYOUTS = (
    Layout(2, 1, 1, 2),
    Layout(2, 1, 2, 1),
    Layout(8, 1, 1, 8),
    Layout(8, 3, 3, 2),
    Layout(8, 3, 6, 1),
    Layout(32, 10, 3, 8),
    Layout(32, 10, 12, 2),
    Layout(32, 10, 6, 4),
    Layout(96, 16, 9, 8),
    Layout(96, 16, 18, 4),
    Layout(96, 16, 36, 2),
)


def lines(connections: int) -> list[str]:
    """Return a Markdown table of layouts and their rates, with `connections` connections for each two cores."""
    costs, best = Costs(), replace(Costs(), redis=BEST_REDIS)
    names = [
        "cores",
        "API processes",
        "workers",
        "threads of each",
        "connections",
        "requests/s",
        "with the cheaper Redis",
    ]
    table = [names, ["---"] * len(names)]
    for layout in LAYOUTS:
        numbers = [layout.cores, layout.api_processes, layout.workers, layout.threads, connections * layout.cores // 2]
        rates = (round(rate(each, layout, numbers[-1]), -1) for each in (costs, best))
        table.append([f"{number:,.0f}" for number in (*numbers, *rates)])
    return [f"| {' | '.join(row)} |" for row in table]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=64, help="connections to each two cores")
    print("\n".join(lines(parser.parse_args().connections)))


if __name__ == "__main__":
    main()
