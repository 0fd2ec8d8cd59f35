"""scripts/chaos: every promise is kept in a short run, and its parts find broken promises."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from socket import create_connection, socket
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from chaos_run.answers import Answers
from chaos_run.audit import Audit
from chaos_run.cases import ODD, ROUTES, Case, Outcomes, draw
from chaos_run.clock import set_clock
from chaos_run.faults import ALONE_S, KINDS, schedule
from chaos_run.proxy import Link
from chaos_run.worker import digest
from conftest import PATIENCE_S, wait_until
from http_servers import running
from page import ROOT
from process import environment
from queues import Queue

from shoal import Client
from shoal.contract.replies import Reply
from shoal.errors import Internal
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.index.index import Index

CASE = Case(1, "good", "handle", "embed", ("storm in europe",), "interactive", 0.0)


@pytest.mark.wide
def test_a_run_loses_nothing(tiny_source: Path, tiny_model: Path, home: Path, redis_url: str, tmp_path: Path) -> None:
    saved = tmp_path / "tally.json"
    command = [sys.executable, ROOT / "scripts" / "chaos.py", "--jobs", 320, "--seconds", 9, "--every", 0.7]
    command += ["--model", tiny_source, "--json", saved]
    settings = environment() | {"SHOAL_HOME": str(home), "TMPDIR": str(tmp_path)}
    done = subprocess.run(list(map(str, command)), env=settings, capture_output=True, text=True)
    tally = json.loads(saved.read_text()) if saved.exists() else {"broken": [done.stderr]}
    assert tally["broken"] == [], f"{done.stdout}\n{done.stderr}"  # a promise may be kept `late` on a slow machine
    assert tally["answers"]


def test_the_same_seed_draws_the_same_run_which_has_every_kind_of_case_and_fault() -> None:
    def drawn(seed: int) -> tuple[Any, ...]:
        return draw(seed, 20_000, 600.0), schedule(seed, 0.0, 600.0, 1.5, list(KINDS))

    cases, faults = drawn(1)
    assert (cases, faults) == drawn(1)
    assert cases != drawn(4)[0]
    assert faults != drawn(4)[1]
    assert {case.kind for case in cases} == {"good", *ODD}
    assert {case.route for case in cases} == set(ROUTES)
    assert {fault.kind for fault in faults} == set(KINDS)
    for n, fault in enumerate(faults):
        if fault.kind == "kill worker, alone":
            assert all(before.at_s + before.seconds < fault.at_s for before in faults[:n])
            assert all(after.at_s >= fault.at_s + ALONE_S for after in faults[n + 1 :])


@pytest.fixture
def audit(queue: Queue, encoder: Encoder, index: Index, tmp_path: Path) -> Audit:
    """Return an audit of the test's own pool, in which one job was accepted and its text computed once."""
    (tmp_path / "computed").write_bytes(digest(CASE.texts[0]))
    answers, outcomes = Answers(encoder, index, [CASE]), Outcomes()
    return Audit(queue.redis, queue.keys, tmp_path / "computed", answers, outcomes, [CASE])


@pytest.fixture
def job_id(serving: Any, client: Client, audit: Audit) -> str:
    """Return the id of the only job. A worker has answered it, and its result was not read."""
    handle = client.submit(CASE.op, CASE.texts)
    wait_until(lambda: handle.status() == "done")
    audit.outcomes.accepted[handle.id] = CASE
    return handle.id


def reply_wrongly(queue: Queue, job_id: str) -> None:
    reply = Reply.unpack(queue.redis.lindex(queue.keys.result(job_id), 0))
    assert reply.vectors is not None
    queue.redis.lset(queue.keys.result(job_id), 0, Reply(job_id, vectors=-reply.vectors).pack())


def keep(queue: Queue, job_id: str) -> None:
    """Break no promise."""


def fail(queue: Queue, job_id: str) -> None:
    queue.redis.lset(queue.keys.result(job_id), 0, Reply.failure(job_id, Internal("it broke")).pack())
    queue.redis.hset(queue.keys.record(job_id), "status", "failed")


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (keep, ""),
        (lambda queue, job_id: queue.redis.delete(queue.keys.result(job_id)), "done with 0 replies"),
        (lambda queue, job_id: queue.redis.lpush(queue.keys.result(job_id), b""), "done with 2 replies"),
        (reply_wrongly, "cosine -1.0"),
        (fail, "internal: it broke"),
        (lambda queue, job_id: queue.redis.persist(queue.keys.record(job_id)), "without a time to live"),
        (lambda queue, _: queue.redis.rpush(queue.keys.lane("elsewhere"), b"x"), "jobs left in a lane: 1"),
        (lambda queue, _: queue.redis.xadd(queue.keys.dead, {"job": b"x", "reason": b""}), "of an innocent job"),
        (lambda queue, _: queue.redis.hset(queue.keys.of_lane("bulk", "load"), "texts", 3), "that are not 0: 1"),
        (lambda queue, _: queue.redis.hset(f"{queue.keys.root}:once:case", "id", "x"), "job x has a key, but no"),
    ],
)
def test_the_audit(audit: Audit, queue: Queue, job_id: str, break_it: Callable[[Queue, str], None], told: str) -> None:
    break_it(queue, job_id)
    try:
        figures = audit.run()
    finally:
        queue.redis.delete(queue.keys.record(job_id), queue.keys.of_lane("bulk", "load"), queue.keys.lane("elsewhere"))
        queue.redis.delete(f"{queue.keys.root}:once:case")
    assert told in " ".join(audit.outcomes.broken)
    if not told:
        assert audit.outcomes.broken == []
        wanted = ("texts computed", "texts computed again", "jobs left in a lane")
        assert [figures[name] for name in wanted] == [1, 0, 0]


def test_a_programs_clock_is_ahead_as_its_file_says(tmp_path: Path) -> None:
    file, program = tmp_path / "clock", tmp_path / "program.py"
    program.write_text(
        "import sys, time\nwhile True: print(time.time(), *sys.argv[1:], flush=True); time.sleep(0.01)\n"
    )
    set_clock(file, 3_600.0)
    command = [sys.executable, ROOT / "scripts" / "chaos_run" / "clock.py", file, program, "an argument"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout
            lines = (line.partition(" ") for line in running.stdout)
            ahead = ((float(now) - time.time(), rest) for now, _, rest in lines)
            assert next(rest for ahead_s, rest in ahead if ahead_s > 3_000) == "an argument\n"
            set_clock(file, -3_600.0)
            assert next(ahead_s for ahead_s, _ in ahead if ahead_s < 0) < -3_000
        finally:
            running.kill()


class Echo(BaseRequestHandler):
    """Sends back all bytes that it gets."""

    def handle(self) -> None:
        while data := self.request.recv(1_000):
            self.request.sendall(data)


@pytest.fixture
def link() -> Iterator[Link]:
    """Yield a link to an echo server."""
    echo = ThreadingTCPServer(("127.0.0.1", 0), Echo)
    with running(echo), closing(Link(echo.server_address[1])) as link:
        yield link


def connect(link: Link) -> socket:
    """Return a connection through the link that has worked once."""
    connection = create_connection(("127.0.0.1", link.port), timeout=PATIENCE_S)
    assert ask(connection) == b"storm"
    return connection


def ask(connection: socket, data: bytes = b"storm") -> bytes:
    """Return the bytes that come back; none when the connection has ended."""
    try:
        connection.sendall(data)
        return connection.recv(1_000)
    except ConnectionError:
        return b""


def test_a_cut_ends_connections_and_lets_new_ones_in_but_a_link_that_refuses_lets_none_in(link: Link) -> None:
    with connect(link) as connection:
        link.set("cut")
        assert ask(connection) == b""
    connect(link).close()
    link.set("refuse")
    with create_connection(("127.0.0.1", link.port), timeout=PATIENCE_S) as connection:
        assert ask(connection) == b""
    link.set("pass")
    connect(link).close()


@pytest.mark.parametrize(("mode", "comes"), [("swallow", b""), ("stall", b"storm")])
def test_swallowed_bytes_are_lost_and_stalled_bytes_come_later(link: Link, mode: str, comes: bytes) -> None:
    with connect(link) as connection:
        link.set(mode)
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            ask(connection)
        wait_until(lambda: mode == "stall" or any(link._open.values()))  # the link has noted that bytes were lost
        link.set("pass")
        connection.settimeout(PATIENCE_S)
        assert connection.recv(1_000) == comes


def test_a_slow_link_hands_on_everything_and_a_torn_reply_ends_in_the_middle(link: Link) -> None:
    with connect(link) as connection:
        link.set("slow", 1e6)
        connection.sendall(b"1" * 50_000)
        with connection.makefile("rb") as replies:
            assert replies.read(50_000) == b"1" * 50_000
        link.set("tear", 0.5)
        assert ask(connection, b"0123456789") == b"01234"
        assert connection.recv(1_000) == b""
