"""The load generator wrk: its requests, and its output as numbers."""

import json
import resource
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from shoal.errors import MissingExtra, NotReady

#: Longest wait of wrk for one answer before it counts as an error.
_TIMEOUT_S = 60

#: Each run begins this number of texts after the beginning of the last run, so that no run repeats another.
STRIDE = 4_001

#: Beginning of the line with JSON in wrk's output.
_MARK = "measured: "

#: The script makes all requests before the clock starts. It is run as `wrk -s SCRIPT URL -- BODIES FIRST`.
_SCRIPT = """
local requests, n = {}, 0
function init(args)
  for line in io.lines(args[1]) do requests[#requests + 1] = wrk.format("POST", nil, nil, line) end
  n = tonumber(args[2])
end
function request() n = n % #requests + 1; return requests[n] end
function done(summary, latency)
  local errors = summary.errors
  local lost = errors.connect + errors.read + errors.write + errors.timeout
  io.write('measured: {', string.format(
    '"num_answers": %d, "num_refused": %d, "num_lost": %d, "duration_us": %d, "p50_us": %d, "p90_us": %d, "p99_us": %d',
    summary.requests, errors.status, lost, summary.duration,
    latency:percentile(50), latency:percentile(90), latency:percentile(99)), '}\\n')
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """Repeated requests with these bodies. Each of the open `connections` sends one request after the other."""

    url: str
    bodies: Sequence[bytes]
    connections: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one run of a load; `cpu_s` is the processor time of wrk itself.

    `num_requests` counts the successes, and `num_failed` other statuses and requests without an answer.
    """

    num_requests: int
    duration_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    cpu_s: float = 0.0
    num_failed: int = 0

    @property
    def requests_per_s(self) -> float:
        """Successes per second."""
        return self.num_requests / self.duration_s

    @classmethod
    def parse(cls, output: str, cpu_s: float = 0.0, may_fail: bool = False) -> Self:
        """Return the numbers in wrk's output.

        Raises NotReady if no request succeeded, or if any failed without `may_fail`: such a run is not valid.
        """
        _, mark, rest = output.partition(_MARK)
        found = json.loads(rest.splitlines()[0]) if mark else {"num_answers": 0, "num_refused": 0, "num_lost": 0}
        num_requests = found["num_answers"] - found["num_refused"]
        num_failed = found["num_refused"] + found["num_lost"]
        if not num_requests or (num_failed and not may_fail):
            raise NotReady(f"{num_failed} requests failed and {num_requests} did not: the run is invalid:\n{output}")
        p50_ms, p90_ms, p99_ms = (found[f"p{percent}_us"] / 1_000 for percent in (50, 90, 99))
        return cls(num_requests, found["duration_us"] / 1_000_000, p50_ms, p90_ms, p99_ms, cpu_s, num_failed)


def find() -> str:
    """Return the path of wrk.

    Raises MissingExtra if it is not on the PATH.
    """
    if found := shutil.which("wrk"):
        return found
    raise MissingExtra("wrk makes the load and is not on the PATH: install it (Debian and Ubuntu: apt-get install wrk)")


def run(load: Load, seconds: int, first: int = 0, may_fail: bool = False) -> Measured:
    """Run the load for some seconds, beginning with body number `first`.

    Raises MissingExtra without wrk, and NotReady if a request fails; if requests `may_fail`, only if all fail.
    """
    with TemporaryDirectory() as folder:
        script, bodies = Path(folder) / "load.lua", Path(folder) / "bodies"
        script.write_text(_SCRIPT)
        bodies.write_bytes(b"\n".join(load.bodies))
        flags = ["-t1", f"-c{load.connections}", f"-d{seconds}s", "--timeout", f"{_TIMEOUT_S}s", "-s", str(script)]
        flags += ["-H", "content-type: application/json", load.url, "--", str(bodies), str(first % len(load.bodies))]
        before = _cpu_of_children_s()
        done = subprocess.run([find(), *flags], capture_output=True, text=True)
        return Measured.parse(done.stdout + done.stderr, _cpu_of_children_s() - before, may_fail)


def _cpu_of_children_s() -> float:
    """Return the processor time of the child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
