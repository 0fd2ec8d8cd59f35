"""A file of headlines embedded in bulk: its rate beside the bare engine's, and requests of others meanwhile."""

import re
import shutil
import subprocess
import time
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
from benchmarks.trial import Figures, Row, Trial

#: Rows of the file, and of the smaller file of the warm-up. 20,000 rows take half a minute on two cores.
NUM_ROWS, NUM_WARM_UP = 20_000, 2_000

#: Interactive requests a second beside the file, and the seconds of a run with these requests alone.
RATE, ALONE_S = 10.0, 30

#: How long interactive requests arrive beside the file, in times of what the file takes alone. Requests that are due
#: after its end do not count.
LOAD_SHARE = 1.3


def run(plan: Plan) -> list[Row]:
    """Embed the file alone and beside requests, in turns with the bare engine and with the requests alone."""
    with (
        TemporaryDirectory(dir=HOME / "bench", prefix="bulk-") as folder,
        engine.bare() as bare,
        stack(environment=NO_CACHE) as running,
    ):
        server = Server(Target("shoal", f"{running.url}/embed"), Processes(running.processes), running.url)
        file = File(Path(folder), plan, server, running.redis_url)
        case, requests = f"a file of {len(file.rows):,} headlines", f"{RATE:g} requests/s"
        trials = [
            *(trial for trial in bare.headline_trials(plan.texts) if trial.case.startswith(("64 ", "128 "))),
            Trial(case, server.name, file.embed),
            Trial(requests, server.name, partial(_requests, plan, server)),
            Trial(f"{requests} beside {case}", server.name, file.embed_beside),
        ]
        return plan.interleave("bulk", trials)


class File:
    """A file that is embedded by a process of its own. A warm-up, which is run 0, has few of its rows."""

    def __init__(self, folder: Path, plan: Plan, server: Server, redis_url: str):
        self.folder = folder
        self.rows = plan.texts.headlines[:NUM_ROWS]
        self.plan = plan
        self.server = server
        self.redis_url = redis_url
        self.alone_s = 0.0

    def embed(self, _: int, number: int) -> Figures:
        """Return the rate, the processor time for a row, and the highest memory of the process."""
        before = self.server.processes.cpu_s()
        num_rows, self.alone_s, figures = self._embed(number)
        cost = self.server.processes.ms_a_request(before, num_rows, file=figures.pop("cpu s"))
        return {"rows/s": num_rows / self.alone_s, **figures, **cost}

    def embed_beside(self, _: int, number: int) -> Figures:
        """Return the rate, and the latency of the requests that were due before the end. Follows an `embed`."""
        load, load_s = self.server.embed_load(64, self.plan.texts.alone), LOAD_SHARE * self.alone_s
        with own_process() as process:
            running = process.submit(generate, load.url, load.bodies, load_s, RATE, seed=number + 1)
            num_rows, seconds = self._embed(number)[:2]
            found = running.result()
        due = found.due_s < seconds
        return {"rows/s": num_rows / seconds, **percentiles_ms((found.answered_s - found.due_s)[due])}

    def _embed(self, number: int) -> tuple[int, float, dict[str, float]]:
        """Embed the rows of that run; return their number, the seconds, and what `_until_end` found."""
        rows = self.rows if number else self.rows[:NUM_WARM_UP]
        source, out = self.folder / "headlines.txt", self.folder / "vectors"
        source.write_text("".join(f"{text}\n" for text in rows))
        shutil.rmtree(out, ignore_errors=True)
        words = ["embed", "--file", str(source), "--out", str(out), "--redis-url", self.redis_url]
        started_s = time.perf_counter()
        with subprocess.Popen([*SHOAL, *words], stderr=subprocess.DEVNULL) as process:
            figures = _until_end(process)
        if process.returncode:
            raise OSError(f"shoal embed ended with exit code {process.returncode}")
        return len(rows), time.perf_counter() - started_s, figures


def _requests(plan: Plan, server: Server, seconds: int, number: int) -> Figures:
    load, seconds = server.embed_load(64, plan.texts.alone), ALONE_S if number else seconds
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
