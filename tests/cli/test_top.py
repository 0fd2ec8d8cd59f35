"""`shoal top`: its tables, and its end in a terminal and without one."""

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
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from api_stub import MakeApp, StubWorker
from http_servers import Listen
from process import environment, run
from rich.console import Console

from shoal.cli.pool_screen import pool_tables
from shoal_api.access import api_keys

pytest_plugins = ["api_fixtures", "cli_fixtures", "http_fixtures"]

HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]x\n"

POOL: dict[str, Any] = {
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


def shown(pool: Mapping[str, Any], width: int = 120) -> str:
    """Return the tables as text."""
    console = Console(width=width, color_system=None, file=io.StringIO())
    with console.capture() as printed:
        console.print(pool_tables(pool))
    return printed.get()


class TestTables:
    def test_tables_show_lanes_rates_workers_and_long_jobs(self) -> None:
        text = shown(POOL | {"long_jobs": [JOB, JOB | {"id": "j-2", "status": "done"}]})
        assert re.search(r"^lane +jobs +texts +bytes +oldest age +wait p50", text)
        assert re.search(r"interactive +12,345 +3 +5 MB +1 min 30 s +250 ms +- +-", text)
        assert re.search(r"^ *10 +- +80 +- +- +- +4$", text, re.MULTILINE)
        assert re.search(r"b +ready +m +- +7\.0 +50 % +1,024 MB", text)
        assert re.search(r"j-1 +running +embedding +50 %", text)
        assert "j-2" not in text

    def test_no_text_of_a_pool_controls_the_terminal(self) -> None:
        text = shown(POOL | {"lanes": [{"lane": HOSTILE}], "long_jobs": [JOB | {"progress": {"step": HOSTILE}}]})
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
        assert "[red]x" in text

    def test_missing_and_odd_values_are_left_out(self) -> None:
        for pool in ({}, ODD):
            assert "no worker is alive" in shown(pool)

    @pytest.mark.parametrize("width", [10, 50, 300])
    def test_no_line_is_wider_than_the_terminal(self, width: int) -> None:
        text = shown(POOL | {"long_jobs": [JOB]}, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert width < 50 or re.search(r"^inter", text, re.MULTILINE)

    def test_nothing_is_cut_in_a_terminal_of_80_characters(self) -> None:
        model = "sentence-transformers/all-MiniLM-L6-v2"
        worker = POOL["workers"][0] | {"id": "host-16266-b7bfb9", "model": model, "engine": "openvino"}
        job = JOB | {"id": "2037aacc1da0747d9e179e9d", "progress": {"step": "reading fields", "eta_s": 5_999.0}}
        assert "…" not in shown(POOL | {"workers": [worker], "long_jobs": [job]}, width=80)


class TestTerminal:
    def test_top_waits_for_an_absent_redis_and_ctrl_c_ends_it(self, pool_settings: dict[str, str]) -> None:
        main, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 60, 0, 0))
        env = environment(**pool_settings | {"redis_url": "redis://127.0.0.1:1"}) | {"TERM": "xterm-256color"}
        command = [sys.executable, "-m", "shoal", "top"]
        with subprocess.Popen(command, env=env, stdin=terminal, stdout=terminal, stderr=terminal) as top:
            os.close(terminal)
            output = ""
            while "[unavailable]" not in output:
                output += os.read(main, 65_536).decode()
            top.send_signal(signal.SIGINT)
            with suppress(OSError):  # the end of the process
                while data := os.read(main, 65_536):
                    output += data.decode()
        os.close(main)
        assert top.returncode == 0
        assert output.count("\x1b[?1049l") == 1  # the terminal again shows its former content
        assert "Traceback" not in output


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
