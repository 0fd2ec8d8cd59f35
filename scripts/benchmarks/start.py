"""The time from exec until ready, and the memory of each process then and after a load."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.request import urlopen

from stack import HOME, SHOAL, free_port, model, stack

from benchmarks.plan import Plan
from benchmarks.server import NO_CACHE, Processes, shoal
from shoal.bench.trial import Figures, Row, Trial
from shoal.errors import NotReady
from shoal_workers.model.model import prepared_folder

#: Time between two questions to a starting API, and the longest that a start may take.
ASK_EVERY_S, WITHIN_S = 0.005, 120.0


def run(plan: Plan) -> list[Row]:
    """Run starts in turns, then memory after a load of 64 connections."""
    prepared = prepared_folder(HOME, model().name)
    with stack(workers=0) as running, TemporaryDirectory(dir=HOME / "bench", prefix="start-") as home:
        models = Path(home) / "models" / prepared.name  # a copy, whose compiled form may be removed
        shutil.copytree(prepared, models, ignore=shutil.ignore_patterns("cache"))
        environment = {"SHOAL_REDIS_URL": running.redis_url, "SHOAL_HOME": home, "SHOAL_LOG_LEVEL": "info"}
        worker = partial(_start, ["worker"], environment | {"SHOAL_WORKERS": "1"}, _says_ready)
        starts = {
            "worker, compiled model cached": worker,
            "worker, nothing compiled yet": partial(_start_cold, models / "cache", worker),
            "API": partial(_start, ["api"], environment, partial(_answers, "health")),
            "shoal serve, 1 worker": partial(_start, ["serve", "--workers", "1"], environment, _answers_ready),
        }
        rows = plan.interleave("start", [Trial(case, "shoal", start) for case, start in starts.items()])
    with shoal("shoal, after a load") as server:
        server.embed_trial("64 connections", 64, plan.texts.alone).run(plan.seconds, 0)
        return rows + server.memory_rows("start")


def _start_cold(cache: Path, start: Callable[[int, int], Figures], seconds: int, number: int) -> Figures:
    shutil.rmtree(cache, ignore_errors=True)
    return start(seconds, number)


def _start(
    words: list[str],
    environment: dict[str, str],
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
            raise NotReady(f"shoal {' '.join(words)} was not ready within {WITHIN_S:g} s")
        ready_s = time.perf_counter() - started
        memory = Processes({"started": process.pid}).memory_mb().values()
        kinds = ("resident", "private", "written")
        return {"ready s": ready_s} | {f"{kind} MB": sum(sizes[kind] for sizes in memory) for kind in kinds}
    finally:
        process.terminate()
        process.communicate()


def _says_ready(process: "subprocess.Popen[str]", _: str) -> bool:
    """Wait for the line in which a worker says that it takes jobs: nothing else is as quick."""
    assert process.stderr
    return any("is taking jobs" in line for line in process.stderr)


def _answers(route: str, process: "subprocess.Popen[str]", port: str) -> bool:
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        with suppress(URLError, OSError), urlopen(f"http://127.0.0.1:{port}/{route}", timeout=2):
            return True
        time.sleep(ASK_EVERY_S)
    return False


_answers_ready = partial(_answers, "ready")
