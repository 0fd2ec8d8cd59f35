"""A server under load: its requests, and the processor time and memory of its processes."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from stack import OURS, Checkout, stack

from benchmarks import wrk
from benchmarks.peers import PEERS, Target, target_of
from benchmarks.trial import Figures, Row, Trial, figures_of

#: Only the scenario `cache` uses a cache. The texts of other loads repeat too, and a cache would distort their rates.
NO_CACHE = {"SHOAL_CACHE_MB": "0"}

#: Share of a processor below which a server counts as idle, and the longest wait until it is idle, in seconds.
IDLE_SHARE, IDLE_WITHIN_S = 0.1, 60.0


class Processes:
    """Processes by name, each with the processes that it started."""

    def __init__(self, roots: Mapping[str, int]):
        self._roots = {name: psutil.Process(pid) for name, pid in roots.items()}

    def cpu_s(self) -> Counter[str]:
        """Return the processor time so far, in seconds; `worker 1` and `worker 2` count as `worker`."""
        found: Counter[str] = Counter()
        for name, _, process in self._all():
            times = process.cpu_times()
            found[name.rstrip(" 0123456789")] += times.user + times.system
        return found

    def memory_mb(self) -> dict[str, dict[str, float]]:
        """Return the memory of each process: `resident`, and the `private` part that no other process maps."""
        found = {}
        for name, number, process in self._all():
            sizes = process.memory_full_info()
            name = f"{name}, child {number}" if number else name
            found[name] = {"resident": sizes.rss / 2**20, "private": sizes.uss / 2**20}
        return found

    def ms_a_request(self, before: Counter[str], num_requests: int, **load_s: float) -> Figures:
        """Wait until all is idle; return the processor time per request since `before`, with the load generator's."""
        taken_s = {name: now - before[name] for name, now in self.cpu_s().items()}
        self.wait_until_idle()
        if taken_s:  # a remote server has no processes here
            taken_s["all but the load"] = sum(taken_s.values())
        return {f"processor ms a request: {name}": s * 1_000 / num_requests for name, s in (taken_s | load_s).items()}

    def wait_until_idle(self) -> None:
        """Wait until the requests that were unanswered at the end of the load are computed."""
        until, before, pause_s = time.monotonic() + IDLE_WITHIN_S, float("-inf"), 0.2
        while time.monotonic() < until and (now := self.cpu_s().total()) - before >= IDLE_SHARE * pause_s:
            before = now
            time.sleep(pause_s)

    def _all(self) -> Iterator[tuple[str, int, psutil.Process]]:
        for name, root in self._roots.items():
            for number, process in enumerate([root, *root.children(recursive=True)]):
                yield name, number, process


@dataclass(frozen=True)
class Server:
    """A server to which requests are sent, and the processes whose processor time and memory count."""

    target: Target
    processes: Processes
    url: str = ""

    @property
    def name(self) -> str:
        """The server's name in tables."""
        return self.target.name

    def embed_trial(self, case: str, connections: int, requests: Sequence[Sequence[str]]) -> Trial:
        """Return a trial that embeds the texts of each request."""
        return Trial(case, self.name, partial(self.run, self.embed_load(connections, requests), len(requests[0])))

    def embed_load(self, connections: int, requests: Sequence[Sequence[str]]) -> wrk.Load:
        """Return the load of a trial that embeds."""
        bodies = [self.target.body(texts) for texts in requests]
        return wrk.Load(self.target.url, bodies, connections)

    def search_trial(self, case: str, connections: int, requests: Sequence[Sequence[str]], index: str) -> Trial:
        """Return a trial of searches, each with one query."""
        bodies = [json.dumps({"queries": query, "k": 5, "index": index}).encode() for (query,) in requests]
        return Trial(case, self.name, partial(self.run, wrk.Load(f"{self.url}/search", bodies, connections), 1))

    def memory_rows(self, scenario: str) -> list[Row]:
        """Return the memory of each process now."""
        return [
            Row(scenario, name, self.name, {f"memory in MB: {kind}": [size] for kind, size in sizes.items()})
            for name, sizes in self.processes.memory_mb().items()
        ]

    def run(self, load: wrk.Load, texts_per_request: int, seconds: int, number: int) -> Figures:
        before = self.processes.cpu_s()
        measured = wrk.run(load, seconds, number * wrk.STRIDE)
        processor_ms = self.processes.ms_a_request(before, measured.num_requests, wrk=measured.cpu_s)
        return {**figures_of(measured, texts_per_request), **processor_ms}


@contextmanager
def shoal(
    name: str = "shoal",
    indexes: Mapping[str, Path] | None = None,
    workers: int = 1,
    checkout: Checkout = OURS,
    environment: Mapping[str, str] = NO_CACHE,
) -> Iterator[Server]:
    """Run Shoal, without a cache unless the environment sets one."""
    with stack(indexes, workers, checkout, NO_CACHE | dict(environment)) as running:
        yield Server(Target(name, f"{running.url}/embed"), Processes(running.processes), running.url)


@contextmanager
def peer(name: str) -> Iterator[Server]:
    """Run a peer that is installed here, or use a running peer at a URL such as `tei+http://host:port`."""
    if name not in PEERS:
        yield Server(target_of(name), Processes({}))
        return
    with PEERS[name].start() as target:
        yield Server(target, Processes({"server": target.pid} if target.pid else {}))
