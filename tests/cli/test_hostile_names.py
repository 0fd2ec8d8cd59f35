"""Hostile texts, some of them written into Redis by another program, control no terminal and forge no line."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from api_stub import ABOUT, INDEX, StubWorker
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from long_job_callers import Rq
from process import run
from queues import Queue

from shoal.cli.main import main
from shoal.cli.output import when
from shoal.long_jobs.long_jobs import LongJobs
from shoal.operations import Embed
from shoal.process.printable import printable
from shoal.settings import Settings

pytest_plugins = ["api_fixtures", "cli_fixtures", "long_job_fixtures"]

#: Characters that control a terminal, begin a line, or change the direction of a text.
OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

#: A name that would clear the screen, rename the window, and begin a forged line.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\nworkers alive: 99"

SHOWN = r"\u001b[2J\u001b]0;owned\u0007\u009b31m\u202e\nworkers alive: 99"

Lines = Callable[..., list[str]]


@pytest.fixture
def lines(pool_settings: dict[str, Any]) -> Lines:
    """Return a function that runs a command, and returns the lines that it prints."""

    def run_command(*arguments: str) -> list[str]:
        done = run(*arguments, **pool_settings)
        assert (done.returncode, done.stderr) == (0, "")
        found = done.stdout.split("\n")[:-1]
        assert not any(map(OBEYED.search, found)), repr(found)
        return found

    return run_command


@given(st.text(st.characters(exclude_categories=())))
def test_no_text_controls_the_terminal(text: str) -> None:
    shown = printable(text)
    assert not OBEYED.search(shown)
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown
    shown.encode()
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text


def test_escapes_are_readable_and_words_of_any_language_stay_as_they_are() -> None:
    for text in ("Überschwemmung", "می‌خواهم", "洪水　東京", "👩‍🚒", "a\\nb"):
        assert printable(text) == text
    assert not OBEYED.search(printable("".join(map(chr, range(0xE000)))))
    assert printable(HOSTILE + "\t") == SHOWN + r"\t"
    assert [when(0.0), when(1e16)] == ["1970-01-01T00:00:00+00:00", "10000000000000000 s"]
    done = CliRunner().invoke(main, ["index", "info", "./no\x1b[2J\nsuch"])
    assert (done.exit_code, "\x1b" in done.output, len(done.output.splitlines())) == (1, False, 1)


def test_status_and_a_hit_escape_hostile_texts(lines: Lines, stub: StubWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    names = dict.fromkeys(("state", "model", "engine", "precision", "host"), HOSTILE)
    indexes = {"indexes": {HOSTILE: INDEX | {"version": HOSTILE}}, "index_errors": {HOSTILE: HOSTILE}}
    stub.pool.announce(HOSTILE, ABOUT | names | indexes)
    found = lines("status")
    stub.pool.leave(HOSTILE)
    assert [line for line in found if line.startswith("workers alive")] == ["workers alive: 2"]
    assert f"  {SHOWN} {SHOWN} {SHOWN} {SHOWN} {SHOWN}: {SHOWN} (3)" in found
    assert f"    index {SHOWN}: {SHOWN}" in found
    hit = {"id": "1", "score": 0.5, "text": f"first\n{HOSTILE}", "topic": HOSTILE}
    monkeypatch.setattr("api_stub._hits", lambda job: [[hit]])
    found = lines("search", "storm", "--fields", "topic")
    assert found[0] == "0.500  1  first"
    assert json.loads(found[-1].partition("topic: ")[2]) == HOSTILE
    assert json.loads("".join(lines("search", "storm", "--json"))) == [hit]


def test_dead_letters_escape_hostile_texts(lines: Lines, queue: Queue) -> None:
    fields = {"job": Embed([HOSTILE], id="a").pack(), "traceback": f"line 1\n{HOSTILE}\r\nline 2"}
    names = dict.fromkeys(("reason", "lane", "worker"), HOSTILE)
    letter = queue.redis.xadd(queue.keys.dead, fields | names | {"deliveries": "3"}).decode()
    far = queue.redis.xadd(queue.keys.dead, {"job": b"no job"}, id="1000000000000000000-1").decode()
    listed = lines("dead", "list")
    assert listed[0] == "2 dead letters"
    assert listed[1].startswith(f"{far}  1000000000000000 s  6 unreadable bytes")
    assert listed[2].endswith(SHOWN)
    shown = lines("dead", "show", letter)
    assert {f"{name}: {SHOWN}" for name in ("reason", "lane", "worker")} <= set(shown)
    (text,) = (line.removeprefix("text 0: ") for line in shown if line.startswith("text 0: "))
    assert json.loads(text) == HOSTILE
    first, *rest = SHOWN.split(r"\n")
    assert shown[-4:] == ["line 1", first, *rest, "line 2"]


@pytest.mark.wide
def test_long_jobs_escape_hostile_texts(lines: Lines, settings: Settings, rq: Rq) -> None:
    with LongJobs(settings) as jobs:
        job_id = jobs.submit("embed_file", {"source": HOSTILE, "out": "x"}, client=HOSTILE)
    assert [line for line in lines("job", "list") if SHOWN in line]
    assert json.loads("\n".join(lines("job", "show", job_id)))["arguments"]["source"] == HOSTILE
