"""How long it takes from exec until ready, and how much memory each process has then and after a load."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.request import urlopen

from stack import HOME, SHOAL, free_port, model, stack

from benchmarks.embed import sent_headlines
from benchmarks.plan import Plan
from benchmarks.processes import Processes
from benchmarks.server import NO_CACHE, shoal
from shoal.bench.trial import Figures, Row, Trial
from shoal_workers.model.model import prepared_folder

#: How often a starting API is asked whether it is ready.
ASK_EVERY_S = 0.005

#: Longest that a start may take.
WITHIN_S = 120.0

Environment = dict[str, str]


def run(plan: Plan) -> list[Row]:
    """Starts in turns, then memory after a load of 64 connections."""
    with stack(workers=0) as running, _own_models() as home:
        environment = {"SHOAL_REDIS_URL": running.redis_url, "SHOAL_HOME": str(home), "SHOAL_LOG_LEVEL": "info"}
        start_worker = partial(_start, ["worker"], environment | {"SHOAL_WORKERS": "1"}, _says_ready)
        trials = [
            Trial("worker, compiled model cached", "shoal", start_worker),
            Trial("worker, nothing compiled yet", "shoal", partial(_start_cold, home, start_worker)),
            Trial("API", "shoal", partial(_start, ["api"], environment, partial(_answers, "health"))),
            Trial("shoal serve, 1 worker", "shoal", partial(_start, ["serve", "--workers", "1"], environment, _serves)),
        ]
        rows = plan.interleave("start", trials)
    with shoal("shoal, after a load") as server:
        load = server.embed_trial("64 connections", 64, [[text] for text in sent_headlines(plan)])
        load.run(plan.seconds, 0)
        return rows + server.memory_rows("start")


@contextmanager
def _own_models() -> Iterator[Path]:
    """A home with a copy of the prepared model, whose compiled form may be removed."""
    prepared = prepared_folder(HOME, model().name)
    with TemporaryDirectory(dir=HOME / "bench", prefix="start-") as home:
        shutil.copytree(prepared, Path(home) / "models" / prepared.name, ignore=shutil.ignore_patterns("cache"))
        yield Path(home)


def _start_cold(home: Path, start: Callable[[int, int], Figures], seconds: int, number: int) -> Figures:
    shutil.rmtree(prepared_folder(home, model().name) / "cache")
    return start(seconds, number)


def _start(
    words: list[str],
    environment: Environment,
    is_ready: "Callable[[subprocess.Popen[str], str], bool]",
    *_: int,
) -> Figures:
    port = str(free_port())
    environment = os.environ | environment | NO_CACHE | {"SHOAL_PORT": port}
    started = time.perf_counter()
    process = subprocess.Popen(
        [*SHOAL, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        if not is_ready(process, port):
            raise SystemExit(f"shoal {' '.join(words)} was not ready within {WITHIN_S:g} s")
        ready_s = time.perf_counter() - started
        memory = Processes({"started": process.pid}).memory_mb().values()
        kinds = ("resident", "private", "written")
        return {"ready s": ready_s} | {f"{kind} MB": sum(sizes[kind] for sizes in memory) for kind in kinds}
    finally:
        process.terminate()
        process.communicate()


def _says_ready(process: "subprocess.Popen[str]", _: str) -> bool:
    """Waits for the line in which a worker says that it takes jobs: nothing else is as quick."""
    assert process.stderr
    return any("is taking jobs" in line for line in process.stderr)


def _answers(route: str, process: "subprocess.Popen[str]", port: str) -> bool:
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        with suppress(URLError, OSError), urlopen(f"http://127.0.0.1:{port}/{route}", timeout=2):
            return True
        time.sleep(ASK_EVERY_S)
    return False


_serves = partial(_answers, "ready")
