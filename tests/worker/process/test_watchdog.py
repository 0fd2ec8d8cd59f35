"""The watchdog and crash reports: a worker that hangs is ended with a report, and a slow one goes on."""

import fcntl
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import PATIENCE_S
from queues import Queue

from shoal_workers.loop.worker import Worker
from shoal_workers.process.crash_report import MAX_CHARS, CrashReports
from shoal_workers.process.watchdog import EXIT_STALLED, STALLED_AFTER_S
from shoal_workers.service.service import about

#: A program with a watchdog that runs the line `what`, and prints the watchdog's report. The age of its activity does
#: not come from the clock: it is `age_s`, until the line sets another age.
WATCHED = """
import ctypes, sys, threading
from shoal_workers.process.watchdog import Activity, Watchdog

class SetActivity(Activity):
    def __init__(self, age_s):
        super().__init__()
        self.num_looks, self._age_s = threading.Semaphore(0), age_s

    @property
    def age_s(self):
        self.num_looks.release()
        return self._age_s

def say(summary, trace):
    print(summary, trace, flush=True)

activity = SetActivity({age_s})
activity.mark("encoding")
watchdog = Watchdog(activity, {timeout_s}, sys.stderr, say)
watchdog.start(); {what}
watchdog.close()
"""

#: The number of the line `what` in tracebacks.
LINE = WATCHED[: WATCHED.index("{what}")].count("\n") + 1


def watched(what: str, timeout_s: float, age_s: float) -> "subprocess.CompletedProcess[str]":
    program = WATCHED.format(what=what, timeout_s=timeout_s, age_s=age_s)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)


FAIL = "import faulthandler; faulthandler.dump_traceback_later = lambda *_, **__: bytearray(2**62)"
LOOK = "[activity.num_looks.acquire() for _ in range(3)]"
REPORT = "stalled while encoding, for 3601 s "


@pytest.mark.parametrize(
    ("what", "age_s"),
    [
        ("threading.Event().wait()", 3_601),
        (f"{FAIL}; {LOOK}; activity._age_s = 3_601; threading.Event().wait()", 0),  # too little memory at first
    ],
)
def test_a_worker_that_hangs_reports_where_and_is_ended(what: str, age_s: float) -> None:
    done = watched(what, 3_600, age_s)
    assert (done.returncode, done.stdout[: len(REPORT)]) == (EXIT_STALLED, REPORT), done.stderr
    assert f'File "<string>", line {LINE}' in done.stdout
    going_on = watched(LOOK, 3_600, age_s=3_599)
    assert (going_on.returncode, going_on.stdout) == (0, ""), going_on.stderr


def test_a_worker_that_hangs_and_cannot_report_it_is_ended_too() -> None:
    done = watched("ctypes.PyDLL(None).sleep(600)  # holds the interpreter's lock", timeout_s=0.2, age_s=0)
    assert (done.returncode, "Timeout" in done.stderr) == (1, True)
    assert f'File "<string>", line {LINE}' in done.stderr


def test_a_stalled_worker_is_not_ready(worker: Worker) -> None:
    assert about(worker)["state"] == "ready"
    worker.activity.begun_s -= STALLED_AFTER_S  # as if the activity had begun earlier
    assert about(worker)["state"] == "stalled"
    worker.pool.announce(worker.id, about(worker))
    assert worker.pool.ready() == {}
    worker.step(block_s=0)
    assert about(worker)["state"] == "ready"
    worker.pool.leave(worker.id)


@pytest.fixture
def reports(queue: Queue, tmp_path: Path) -> CrashReports:
    return CrashReports(queue.broker, queue.keys, tmp_path / "crashes")


def test_the_report_of_a_crashed_worker_is_kept(reports: CrashReports, tmp_path: Path, queue: Queue) -> None:
    folder = tmp_path / "crashes"
    with reports.recorded("alive") as file:
        assert Path(file.name).parent == folder
        (folder / "crashed").write_text("Fatal Python error: Aborted\n\nThread 0x1:\n")
        (folder / "killed").write_text("")
        reports.forward_files()
        assert [path.name for path in folder.iterdir()] == ["alive"]
    assert list(folder.iterdir()) == []
    assert reports.read("crashed") == "Fatal Python error: Aborted\n\nThread 0x1:\n"
    assert reports.read("killed") == ""
    reports.write("a", "stalled", "trace\n" * MAX_CHARS)
    assert (len(report := reports.read("a")), report[:14]) == (MAX_CHARS, "stalled\ntrace\n")
    assert queue.redis.ttl(queue.keys.crash_report("a")) > 0


def test_a_reader_waits_for_the_report(reports: CrashReports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashes").mkdir()
    with (tmp_path / "crashes" / "a").open("w") as file:
        file.write("Fatal Python error: Aborted\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(file, fcntl.LOCK_UN))
        assert reports.read("a") == "Fatal Python error: Aborted\n"


def test_a_worker_that_ends_with_an_exception_leaves_a_report(
    reports: CrashReports, queue: Queue, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="broken"), reports.recorded("a"):
        raise RuntimeError("broken")
    assert reports.read("a").startswith("RuntimeError: broken\nTraceback (most recent call last)")
    with reports.recorded("a"):
        shutil.rmtree(tmp_path / "crashes")
    (tmp_path / "file").write_text("")
    reports = CrashReports(queue.broker, queue.keys, tmp_path / "file" / "crashes")
    with reports.recorded("a") as file:  # the folder of reports cannot be made
        assert file is sys.stderr
    reports.forward_files()
