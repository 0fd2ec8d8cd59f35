"""A file of headlines embedded in bulk: its rate beside the bare engine's, and requests of others meanwhile."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from stack import HOME, SHOAL, stack

from benchmarks import engine
from benchmarks.arrivals import generate, percentiles_ms
from benchmarks.peers import Target
from benchmarks.plan import Plan, own_process
from benchmarks.server import NO_CACHE, Processes, Server
from shoal.bench.trial import Figures, Row, Trial

#: Requests of others in a second.
RATE = 10.0

#: Longest that requests of others arrive while a file is embedded, in seconds; those after its end do not count.
LOAD_S = 120.0


def run(plan: Plan) -> list[Row]:
    """Embed the file alone and beside requests, in turns with the bare engine and with the requests alone."""
    with (
        TemporaryDirectory(dir=HOME / "bench", prefix="bulk-") as folder,
        engine.bare() as bare,
        stack(environment=NO_CACHE) as running,
    ):
        source = Path(folder) / "headlines.txt"
        source.write_text("".join(f"{text}\n" for text in plan.texts.headlines))
        server = Server(Target("shoal", f"{running.url}/embed"), Processes(running.processes), running.url)
        file = File(source, len(plan.texts.headlines), server, running.redis_url)
        case = f"a file of {file.num_rows:,} headlines"
        requests = f"{RATE:g} requests/s"
        trials = [
            *(trial for trial in bare.headline_trials(plan.texts) if trial.case.startswith(("64 ", "128 "))),
            Trial(case, server.name, lambda *_: file.embed()),
            Trial(requests, server.name, partial(_requests, plan, server)),
            Trial(f"{requests} beside {case}", server.name, lambda _, number: file.embed_beside(plan, number)),
        ]
        return plan.interleave("bulk", trials)


class File:
    """A file that is embedded into a folder beside it, by a process of its own."""

    def __init__(self, source: Path, num_rows: int, server: Server, redis_url: str):
        self.source = source
        self.num_rows = num_rows
        self.server = server
        self.redis_url = redis_url

    def embed(self) -> Figures:
        """Return the rate, the processor time for a row, and the highest memory of the process."""
        before = self.server.processes.cpu_s()
        started_s = time.perf_counter()
        with self._embedding() as process:
            figures = _until_end(process)
        seconds = time.perf_counter() - started_s
        cost = self.server.processes.ms_a_request(before, self.num_rows, file=figures.pop("cpu s"))
        return {"rows/s": self.num_rows / seconds, **figures, **cost}

    def embed_beside(self, plan: Plan, number: int) -> Figures:
        """Return the rate, and the latency of the requests that were due before the end."""
        load = self.server.embed_load(64, plan.texts.alone)
        with own_process() as process:
            running = process.submit(generate, load.url, load.bodies, LOAD_S, RATE, seed=number + 1)
            started_s = time.perf_counter()
            with self._embedding() as embedding:
                _until_end(embedding)
            seconds = time.perf_counter() - started_s
            found = running.result()
        due = found.due_s < seconds
        return {"rows/s": self.num_rows / seconds, **percentiles_ms((found.answered_s - found.due_s)[due])}

    @contextmanager
    def _embedding(self) -> Iterator["subprocess.Popen[bytes]"]:
        out = self.source.with_name("vectors")
        shutil.rmtree(out, ignore_errors=True)
        words = ["embed", "--file", str(self.source), "--out", str(out), "--redis-url", self.redis_url]
        with subprocess.Popen([*SHOAL, *words], stderr=subprocess.DEVNULL) as process:
            yield process
        if process.returncode:
            raise OSError(f"shoal embed ended with exit code {process.returncode}")


def _requests(plan: Plan, server: Server, seconds: int, number: int) -> Figures:
    load = server.embed_load(64, plan.texts.alone)
    with own_process() as process:
        found = process.submit(generate, load.url, load.bodies, seconds, RATE, seed=number + 1).result()
    return percentiles_ms(found.answered_s - found.due_s)


def _until_end(process: "subprocess.Popen[bytes]") -> dict[str, float]:
    """Wait for the end of a process; return its processor time and its highest memory, as of a moment before it."""
    about, figures = psutil.Process(process.pid), {"highest memory in MB": 0.0, "cpu s": 0.0}
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        times = about.cpu_times()
        if found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text()):  # a process that has ended has none
            figures = {"highest memory in MB": int(found[1]) / 2**10, "cpu s": times.user + times.system}
        time.sleep(0.05)
    return figures
