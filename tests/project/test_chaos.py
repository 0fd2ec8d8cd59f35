"""scripts/chaos: a short run of it, in which every promise must be kept, and that its parts find what is broken."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import create_connection, create_server, socket
from threading import Thread
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
def test_nothing_is_lost_while_everything_breaks(
    tiny_source: Path, tiny_model: Path, home: Path, redis_url: str, tmp_path: Path
) -> None:
    saved = tmp_path / "tally.json"
    command = [sys.executable, ROOT / "scripts" / "chaos.py", "--jobs", 320, "--seconds", 9, "--every", 0.7]
    command += ["--model", tiny_source, "--json", saved]
    settings = environment() | {"SHOAL_HOME": str(home), "TMPDIR": str(tmp_path)}
    done = subprocess.run(list(map(str, command)), env=settings, capture_output=True, text=True)
    tally = json.loads(saved.read_text()) if saved.exists() else {"broken": [done.stderr]}
    assert tally["broken"] == [], f"{done.stdout}\n{done.stderr}"  # `late` is another thing: this machine may be slow
    assert tally["answers"]


# What is drawn


def test_the_same_seed_asks_and_breaks_the_same() -> None:
    assert draw(3, 500, 60.0) == draw(3, 500, 60.0) != draw(4, 500, 60.0)
    faults = schedule(3, 0.0, 60.0, 1.0, list(KINDS))
    assert faults == schedule(3, 0.0, 60.0, 1.0, list(KINDS)) != schedule(4, 0.0, 60.0, 1.0, list(KINDS))


def test_a_long_run_has_something_of_everything() -> None:
    cases, faults = draw(1, 20_000, 600.0), schedule(1, 0.0, 600.0, 1.5, list(KINDS))
    assert {case.kind for case in cases} == {"good", *ODD}
    assert {case.route for case in cases} == set(ROUTES)
    assert {fault.kind for fault in faults} == set(KINDS)


def test_a_worker_that_is_killed_alone_is_alone() -> None:
    faults = schedule(1, 0.0, 600.0, 1.0, list(KINDS))
    for n, fault in enumerate(faults):
        if fault.kind == "kill worker, alone":
            assert all(before.at_s + before.seconds < fault.at_s for before in faults[:n])
            assert all(after.at_s >= fault.at_s + ALONE_S for after in faults[n + 1 :])


# What is found


@pytest.fixture
def audit(queue: Queue, encoder: Encoder, index: Index, tmp_path: Path) -> Audit:
    """An audit of the test's own pool, in which one job was accepted and its text computed once."""
    (tmp_path / "computed").write_bytes(digest(CASE.texts[0]))
    answers, outcomes = Answers(encoder, index, [CASE]), Outcomes()
    return Audit(queue.redis, queue.keys, tmp_path / "computed", answers, outcomes, [CASE])


@pytest.fixture
def job_id(serving: Any, client: Client, audit: Audit) -> str:
    """The one job, which a worker has answered and whose result was not read."""
    handle = client.submit(CASE.op, CASE.texts)
    wait_until(lambda: handle.status() == "done")
    audit.outcomes.accepted[handle.id] = CASE
    return handle.id


def test_what_is_as_promised_passes(audit: Audit, job_id: str) -> None:
    figures = audit.run()
    assert audit.outcomes.broken == []
    assert (figures["texts computed"], figures["texts computed again"], figures["jobs left in a lane"]) == (1, 0, 0)


def lose_the_reply(queue: Queue, job_id: str) -> None:
    queue.redis.delete(queue.keys.result(job_id))


def reply_twice(queue: Queue, job_id: str) -> None:
    queue.redis.lpush(queue.keys.result(job_id), b"")


def reply_wrongly(queue: Queue, job_id: str) -> None:
    reply = Reply.unpack(queue.redis.lindex(queue.keys.result(job_id), 0))
    assert reply.vectors is not None
    queue.redis.lset(queue.keys.result(job_id), 0, Reply(job_id, vectors=-reply.vectors).pack())


def fail(queue: Queue, job_id: str) -> None:
    queue.redis.lset(queue.keys.result(job_id), 0, Reply.failure(job_id, Internal("it broke")).pack())
    queue.redis.hset(queue.keys.record(job_id), "status", "failed")


def leave_a_key(queue: Queue, job_id: str) -> None:
    queue.redis.persist(queue.keys.record(job_id))


def leave_a_job(queue: Queue, job_id: str) -> None:
    queue.redis.rpush(queue.keys.lane("elsewhere"), b"x")  # where no worker looks


def bury_an_innocent(queue: Queue, job_id: str) -> None:
    queue.redis.xadd(queue.keys.dead, {"job": b"x", "reason": b"poisoned: it was not"})


def leave_a_load(queue: Queue, job_id: str) -> None:
    queue.redis.hset(queue.keys.of_lane("bulk", "load"), "texts", 3)


def use_a_key_for_another_job(queue: Queue, job_id: str) -> None:
    queue.redis.hset(f"{queue.keys.root}:once:case", mapping={"id": "another", "digest": "x"})


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lose_the_reply, "done with 0 replies"),
        (reply_twice, "done with 2 replies"),
        (reply_wrongly, "cosine -1.0"),
        (fail, "internal: it broke"),
        (leave_a_key, "without a time to live"),
        (leave_a_job, "jobs left in a lane: 1"),
        (bury_an_innocent, "of an innocent job"),
        (leave_a_load, "what a lane holds: 1"),
        (use_a_key_for_another_job, "job another of a key was made for nobody"),
    ],
)
def test_what_is_not_as_promised_is_found(
    audit: Audit, queue: Queue, job_id: str, break_it: Callable[[Queue, str], None], told: str
) -> None:
    break_it(queue, job_id)
    try:
        audit.run()
    finally:
        queue.redis.delete(queue.keys.record(job_id), queue.keys.of_lane("bulk", "load"), queue.keys.lane("elsewhere"))
        queue.redis.delete(f"{queue.keys.root}:once:case")
    assert told in " ".join(audit.outcomes.broken)


# The clock


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


# The proxy


@contextmanager
def echo() -> Iterator[int]:
    """A server that sends back what it gets; its port."""
    threads = list[Thread]()
    with create_server(("127.0.0.1", 0)) as server:

        def start(target: Callable[..., None], *arguments: object) -> None:
            threads.append(Thread(target=target, args=arguments, daemon=True))
            threads[-1].start()

        def answer(connection: socket) -> None:
            with connection, suppress(OSError):
                while data := connection.recv(1_000):
                    connection.sendall(data)

        def accept() -> None:
            try:
                while True:
                    start(answer, server.accept()[0])
            except OSError:
                return

        start(accept)
        yield server.getsockname()[1]
        server.shutdown(2)
        for thread in threads:
            thread.join(PATIENCE_S)


@pytest.fixture
def link() -> Iterator[Link]:
    """A link to an echo."""
    with echo() as port:
        link = Link(port)
        yield link
        link.close()


def connect(link: Link) -> socket:
    """Return a connection through the link."""
    return create_connection(("127.0.0.1", link.port), timeout=PATIENCE_S)


def ask(connection: socket, data: bytes = b"storm") -> bytes:
    """Return what comes back, or nothing when the connection has ended."""
    try:
        connection.sendall(data)
        return connection.recv(1_000)
    except ConnectionError:
        return b""


def test_a_link_passes_everything_on(link: Link) -> None:
    with connect(link) as connection:
        assert ask(connection) == b"storm"


def test_a_cut_ends_connections_and_lets_new_ones_in(link: Link) -> None:
    with connect(link) as connection:
        ask(connection)
        link.set("cut")
        assert ask(connection) == b""
    with connect(link) as connection:
        assert ask(connection) == b"storm"


def test_a_link_that_refuses_lets_no_client_in_until_it_is_mended(link: Link) -> None:
    link.set("refuse")
    with connect(link) as connection:
        assert ask(connection) == b""
    link.set("pass")
    with connect(link) as connection:
        assert ask(connection) == b"storm"


def test_what_is_swallowed_is_gone(link: Link) -> None:
    with connect(link) as connection:
        ask(connection)
        link.set("swallow")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            ask(connection)
        wait_until(lambda: any(link._open.values()))  # the link has noted that bytes were lost
        link.set("pass")
        connection.settimeout(PATIENCE_S)
        assert ask(connection) == b""


def test_what_is_stalled_comes_later(link: Link) -> None:
    with connect(link) as connection:
        ask(connection)
        link.set("stall")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            ask(connection)
        link.set("pass")
        connection.settimeout(PATIENCE_S)
        assert connection.recv(1_000) == b"storm"


def test_a_slow_link_hands_on_everything_piece_by_piece(link: Link) -> None:
    with connect(link) as connection:
        link.set("slow", 1e6)
        assert ask(connection, b"0" * 900) == b"0" * 900
        connection.sendall(b"1" * 50_000)
        found = b""
        while len(found) < 50_000:
            found += connection.recv(50_000)
        assert found == b"1" * 50_000


def test_a_torn_reply_ends_in_the_middle(link: Link) -> None:
    with connect(link) as connection:
        ask(connection)
        link.set("tear", 0.5)
        assert ask(connection, b"0123456789") == b"01234"
        assert connection.recv(1_000) == b""
