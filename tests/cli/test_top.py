"""`shoal top`: its tables, its keys, other sizes of the terminal, and no terminal."""

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from api_stub import MakeApp, StubWorker
from conftest import PATIENCE_S, wait_until
from http_servers import Listen
from process import environment, run
from rich.console import Console

from shoal.cli.pool_screen import View, pool_tables
from shoal_api.access import api_keys

pytest_plugins = ["api_fixtures", "cli_fixtures", "http_fixtures"]

HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]x\n"

POOL = {
    "time": 1_000.0,
    "lanes": [
        {"lane": "interactive", "num_jobs": 12_345, "num_texts": 3, "num_bytes": 5 * 2**20}
        | {"oldest_age_s": 90.0, "wait_p50_s": 0.25},
    ],
    "workers": [
        {"id": "b", "state": "ready", "model": "m", "texts_per_s": 7.0, "busy": 0.5, "memory_bytes": 2**30},
        {"id": "a", "state": "gone", "model": HOSTILE, "texts_per_s": 9.5, "busy": None},
    ],
    "num_dead": 4,
    "rates": {"jobs_per_s": 10.0, "computed_texts_per_s": 80.0, "cached_texts_per_s": 20.0},
}

ODD = {"lanes": 7, "workers": [1], "rates": [], "num_dead": "x", "time": None, "long_jobs": 7}

JOB = {"id": "j-1", "status": "running", "kind": "embed_file", "progress": {"step": "embedding", "fraction": 0.5}}


def shown(pool: Mapping[str, Any], order: str = "id", width: int = 120) -> str:
    """Return the tables as text."""
    console = Console(width=width, color_system=None, file=io.StringIO())
    with console.capture() as printed:
        console.print(pool_tables(pool, order, [0.0, 5.0, 10.0]))
    return printed.get()


class TestTables:
    def test_tables_show_lanes_rates_workers_and_long_jobs(self) -> None:
        text = shown(POOL | {"long_jobs": [JOB, JOB | {"id": "j-2", "status": "done"}]})
        assert re.search(r"interactive +12,345 +3 +5 +1 min 30 s +250 ms +- +-", text)
        assert re.search(r"^10 +- +100 +- +- +- +4 +▁▄█$", text, re.MULTILINE)
        assert re.search(r"b +ready +m +- +- +7\.0 +50 % +- +1,024 MB", text)
        assert re.search(r"j-1 +running +embed_file +embedding", text)
        assert "j-2" not in text

    def test_no_text_of_a_pool_controls_the_terminal(self) -> None:
        text = shown(POOL | {"lanes": [{"lane": HOSTILE}], "long_jobs": [JOB | {"kind": HOSTILE}]})
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
        assert "[red]x" in text

    def test_missing_and_odd_values_are_left_out(self) -> None:
        for pool in ({}, ODD):
            assert "no worker is alive" in shown(pool)
            assert View(pool).render("pool x")

    @pytest.mark.parametrize("width", [10, 50, 300])
    def test_no_line_is_wider_than_the_terminal(self, width: int) -> None:
        text = shown(POOL | {"long_jobs": [JOB]}, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert width < 50 or re.search(r"^inter", text, re.MULTILINE)

    def test_workers_are_sorted(self) -> None:
        view, found = View(POOL), []
        for _ in range(5):
            text = shown(POOL, order=view.order)
            found.append((view.order, text.index("gone") < text.index("ready")))
            view.press("s")
        assert found == [("id", True), ("texts", True), ("busy", False), ("memory", False), ("id", True)]


class Screen:
    """A `shoal` command in its own terminal. `output` has all that the command has written."""

    def __init__(self, *arguments: str, **settings: Any):
        self._main, self._terminal = pty.openpty()
        self.resize(40, 120, is_told=False)
        plain = {name: value for name, value in settings.items() if name.isupper()}
        env = environment(**{name: value for name, value in settings.items() if name not in plain})
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            env.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *arguments],
            env=env | {"TERM": "xterm-256color"} | plain,
            stdin=self._terminal,
            stdout=self._terminal,
            stderr=self._terminal,
            start_new_session=True,
        )
        os.close(self._terminal)
        self.output = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._main, 65_536)
            except OSError:  # the process has ended
                return
            if not data:
                return
            self.output += data.decode(errors="replace")

    def resize(self, rows: int, columns: int, is_told: bool = True) -> None:
        """Give the terminal another size."""
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if is_told:
            self._process.send_signal(signal.SIGWINCH)

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._main, keys.encode())

    def wait(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        code = self._process.wait(PATIENCE_S)
        self._reader.join()
        os.close(self._main)
        return code

    def kill(self) -> None:
        """End the process if it runs."""
        if self._process.poll() is None:
            self._process.kill()
            self.wait()


@contextmanager
def screen(*arguments: str, **settings: Any) -> Iterator[Screen]:
    """Run a command in a terminal."""
    screen = Screen(*arguments, **settings)
    try:
        yield screen
    finally:
        screen.kill()


class TestTerminal:
    def test_top_shows_the_pool_and_obeys_keys_and_sizes(self, pool_settings: dict[str, str], stub: StubWorker) -> None:
        with screen("top", "--every", "600", **pool_settings) as top:
            wait_until(lambda: "sort: id" in top.output and "stub" in top.output)
            for key, text in (("s", "sort: texts"), ("p", "paused"), ("\x1b[A", "paused"), ("p", "p pause")):
                begin = len(top.output)
                top.press(key)
                wait_until(lambda begin=begin, text=text: text in top.output[begin:])  # type: ignore[misc]
            top.resize(10, 60)
            wait_until(lambda: 50 < longest(last_frame(top.output)) <= 60)
            top.press("q")
            assert top.wait() == 0
        assert "\x1b[?1049l" in top.output  # the terminal again shows its former content

    def test_top_waits_for_an_absent_redis(self, pool_settings: dict[str, str]) -> None:
        with screen("top", **pool_settings | {"redis_url": "redis://127.0.0.1:1"}) as top:
            wait_until(lambda: "[unavailable]" in top.output)
            os.kill(top._process.pid, signal.SIGINT)
            assert top.wait() == 0
        assert "Traceback" not in top.output


class TestNoTerminal:
    def test_top_asks_an_api_with_a_key(
        self, make_app: MakeApp, listen: Listen, stub: StubWorker, tmp_path: Path
    ) -> None:
        secret = api_keys.add(tmp_path / "keys", "ops", "admin", "")
        url = listen(make_app(api_keys_file=str(tmp_path / "keys")))
        done = run("top", "--url", url, api_key=secret)
        refused = run("top", "--url", url, "--key", "shoal_wrong")
        assert (done.returncode, done.stderr) == (0, "")
        assert re.search(r"^interactive +0 +0", done.stdout, re.MULTILINE)
        assert "\x1b" not in done.stdout
        assert refused.stderr.endswith(" [unauthorized]\n")


def last_frame(output: str) -> Sequence[str]:
    """Return the lines of the last screen, without their colours."""
    frame = output.rpartition("\x1b[H")[2]
    return [re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", line).rstrip("\r") for line in frame.splitlines()]


def longest(lines: Sequence[str]) -> int:
    """Return the length of the longest line."""
    return max(map(len, lines), default=0)
