"""A server under load: Shoal or a peer, how to ask it, and what its processes take."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stack import OURS, Checkout, free_port, stack

from benchmarks.peers import PEERS, Target, target_of
from benchmarks.processes import Processes
from shoal.bench import wrk
from shoal.bench.trial import STRIDE, Figures, Row, Trial, figures_of

#: Every scenario but `cache` runs without a cache: the texts of a load repeat, and repeats would flatter us.
NO_CACHE = {"SHOAL_CACHE_MB": "0"}


@dataclass(frozen=True)
class Server:
    """Where to send texts, in which shape, and whose processor time and memory to count."""

    target: Target
    processes: Processes
    url: str = ""

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.target.name

    def embed_trial(self, case: str, connections: int, requests: Sequence[Sequence[str]]) -> Trial:
        """Requests to embed, each of the texts given for it."""
        return self._trial(case, self.embed_load(connections, requests), len(requests[0]))

    def embed_load(self, connections: int, requests: Sequence[Sequence[str]]) -> wrk.Load:
        """Return the load of such a trial."""
        bodies = [self.target.body(texts) for texts in requests]
        return wrk.Load(self.target.url, bodies, connections, self.target.headers)

    def search_trial(self, case: str, connections: int, queries: Sequence[str], index: str) -> Trial:
        """Searches for one query each."""
        bodies = [json.dumps({"queries": query, "k": 5, "index": index}).encode() for query in queries]
        return self._trial(case, wrk.Load(f"{self.url}/search", bodies, connections))

    def memory_rows(self, scenario: str) -> list[Row]:
        """The memory of each process now."""
        return [
            Row(scenario, name, self.name, {f"memory in MB: {kind}": [size] for kind, size in sizes.items()})
            for name, sizes in self.processes.memory_mb().items()
        ]

    def _trial(self, case: str, load: wrk.Load, texts_per_request: int = 1) -> Trial:
        return Trial(case, self.name, partial(self._run, load, texts_per_request))

    def _run(self, load: wrk.Load, texts_per_request: int, seconds: int, number: int) -> Figures:
        before = self.processes.cpu_s()
        measured = wrk.run(load, seconds, number * STRIDE)
        taken_s = {name: now - before[name] for name, now in self.processes.cpu_s().items()}
        self.processes.wait_until_idle()
        figures = dict(figures_of(measured, texts_per_request))
        for name, cpu_s in {**taken_s, "wrk": measured.cpu_s}.items():
            figures[f"processor ms a request: {name}"] = cpu_s * 1_000 / measured.num_requests
        return figures


@contextmanager
def shoal(
    name: str = "shoal",
    indexes: Mapping[str, Path] | None = None,
    workers: int = 1,
    worker_command: list[str] | None = None,
    checkout: Checkout = OURS,
    environment: Mapping[str, str] = NO_CACHE,
) -> Iterator[Server]:
    """Run a Shoal, without a cache unless the environment sets one."""
    with stack(indexes, workers, worker_command, checkout, NO_CACHE | dict(environment)) as running:
        yield Server(Target(name, f"{running.url}/embed"), Processes(running.processes), running.url)


@contextmanager
def peer(name: str) -> Iterator[Server]:
    """A peer that is installed and started here, or one that runs at a URL such as `tei+http://host:port`."""
    if name in PEERS:
        with PEERS[name].start(free_port()) as target:
            yield Server(target, Processes({"server": target.pid} if target.pid else {}))
    else:
        yield Server(target_of(name), Processes({}))
