"""Long jobs for tests, and their runner: `python long_job_tasks.py`, with settings in the environment."""

import logging
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from shoal.contract.keys import Keys
from shoal.errors import InvalidRequest, Unavailable
from shoal.long_jobs.submission import KINDS as SHIPPED
from shoal.long_jobs.submission import QUEUES, Kind, queue_name
from shoal.settings import Settings
from shoal.task_progress import Report, TaskProgress
from shoal_workers.long_jobs.runner import Runner
from shoal_workers.long_jobs.tasks import functions

#: A user's text, which nothing may store.
TEXT = "the quick brown fox"


def count(arguments: Mapping[str, Any], job_id: str, report: Report) -> dict[str, Any]:
    """Write the numbers below `rows` into a file, one per line. A second run goes on after the last number.

    Before each number, wait for the file `go`. If `go` has a number, only smaller numbers may be written.
    """
    folder, rows = Path(arguments["folder"]), arguments["rows"]
    numbers, go = folder / "numbers", folder / "go"
    with numbers.open("a") as file:
        for n in range(sum(1 for _ in numbers.open()), rows):
            while not go.exists() or n >= int(go.read_text() or 0):
                report(TaskProgress(rows=n, fraction=n / rows, step="waiting"))
                time.sleep(0.01)
            file.write(f"{n}\n")
            file.flush()
            report(TaskProgress(rows=n + 1, fraction=(n + 1) / rows, step="counting"))
    return {"rows": rows}


def fail(arguments: Mapping[str, Any], job_id: str, report: Report) -> None:
    """Fail with an error of a library."""
    try:
        os.environ[TEXT]
    except KeyError as error:
        raise ValueError(f"cannot read {TEXT}") from error


def refuse(arguments: Mapping[str, Any], job_id: str, report: Report) -> None:
    """Fail with one of Shoal's errors."""
    report(TaskProgress(rows=3, num_bad=1, first_bad=("a.csv, line 2: it is empty",)))
    raise InvalidRequest("source is wrong: name another") from ValueError(TEXT)


def recover(arguments: Mapping[str, Any], job_id: str, report: Report) -> str:
    """Fail or die the number of times that the arguments say; then succeed."""
    tries = Path(arguments["folder"]) / "tries"
    with tries.open("a") as file:
        file.write(f"{os.getpid()}\n")
    if len(tries.read_text().splitlines()) <= arguments["times"]:
        if arguments["dies"]:
            os.kill(os.getpid(), signal.SIGKILL)
        raise Unavailable("Redis does not answer")
    return "done"


def ignore(arguments: Mapping[str, Any], job_id: str, report: Report) -> None:
    """Report nothing until there is a file `go`."""
    while not (Path(arguments["folder"]) / "go").exists():
        time.sleep(0.01)


def queue_names(keys: Keys) -> list[str]:
    """Return the names of the pool's queues in RQ, in the order of `QUEUES`."""
    return [queue_name(keys.root, name) for name in QUEUES]


TASKS = {task.__name__: task for task in (count, fail, refuse, recover, ignore)}
KINDS = {name: Kind(name, retry_after_s=(0, 1, 1)) for name in TASKS}
KINDS |= {name: replace(kind, retry_after_s=(1, 1)) for name, kind in SHIPPED.items()}

if __name__ == "__main__":
    settings = Settings.from_environment()
    logging.basicConfig(level=settings.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    Runner(settings, functions(settings) | {name: partial(task) for name, task in TASKS.items()}, KINDS).run()
