"""The time from exec until ready, and the memory of each process then and after a load."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from stack import HOME, SHOAL, ask, free_port, logged, model, stack

from benchmarks.plan import Plan
from benchmarks.server import NO_CACHE, Processes, shoal
from shoal.bench.trial import Figures, Row, Trial
from shoal.errors import NotReady
from shoal.supervisor.process import Service
from shoal_workers.model.model import prepared_folder

#: Time between two questions to a starting process, and the longest that a start may take.
ASK_EVERY_S, WITHIN_S = 0.005, 120.0


def run(plan: Plan) -> list[Row]:
    """Run starts in turns, then memory after a load of 64 connections."""
    prepared = prepared_folder(HOME, model().name)
    with stack(workers=0) as running, TemporaryDirectory(dir=HOME / "bench", prefix="start-") as home:
        models = Path(home) / "models" / prepared.name  # a copy, whose compiled form may be removed
        shutil.copytree(prepared, models, ignore=shutil.ignore_patterns("cache"))
        environment = {"SHOAL_REDIS_URL": running.redis_url, "SHOAL_HOME": home, "SHOAL_LOG_LEVEL": "info"}
        start = partial(_start, environment | {"SHOAL_WORKERS": "1"}, models / "cache")
        trials = [
            Trial("worker, compiled model cached", "shoal", partial(start, "worker", _says_ready, False)),
            Trial("worker, nothing compiled yet", "shoal", partial(start, "worker", _says_ready, True)),
            Trial("API", "shoal", partial(start, "api", partial(_answers, "health"), False)),
            Trial("shoal serve, 1 worker", "shoal", partial(start, "serve", partial(_answers, "ready"), False)),
        ]
        rows = plan.interleave("start", trials)
    with shoal("shoal, after a load") as server:
        server.embed_trial("64 connections", 64, plan.texts.alone).run(plan.seconds, 0)
        return rows + server.memory_rows("start")


def _start(
    environment: dict[str, str],
    cache: Path,
    command: str,
    is_ready: Callable[[int, Path], bool],
    is_cold: bool,
    *_: int,
) -> Figures:
    if is_cold:
        shutil.rmtree(cache, ignore_errors=True)
    port, log = free_port(), cache.parent / "start.log"
    log.write_text("")
    environment = environment | NO_CACHE | {"SHOAL_PORT": str(port)}
    service = Service(f"shoal {command}", logged([*SHOAL, command], log), environment)
    started = time.perf_counter()
    try:
        service.start()
        while not is_ready(port, log):
            if service.exit_code() is not None or time.perf_counter() - started > WITHIN_S:
                raise NotReady(f"{service.name} was not ready within {WITHIN_S:g} s, or ended:\n{log.read_text()}")
            time.sleep(ASK_EVERY_S)
        ready_s = time.perf_counter() - started
        assert service.process
        memory = Processes({"started": service.process.pid}).memory_mb().values()
        kinds = ("resident", "private", "written")
        return {"ready s": ready_s} | {f"{kind} MB": sum(sizes[kind] for sizes in memory) for kind in kinds}
    finally:
        service.stop()


def _says_ready(_: int, log: Path) -> bool:
    """Return True if the log has the line in which a worker says that it takes jobs: nothing else is as quick."""
    return "is taking jobs" in log.read_text()


def _answers(route: str, port: int, _: Path) -> bool:
    with suppress(OSError):
        return ask(f"http://127.0.0.1:{port}/{route}", timeout_s=2)[0].status == 200
    return False
