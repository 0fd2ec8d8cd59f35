"""The number of workers that share processors, from Redis and from the processes that a worker can see."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from blocking import Pool
from conftest import wait_until
from queues import Queue

from shoal.queue.pool import Membership
from shoal.settings import Settings
from shoal_workers.process.heartbeat import Heartbeat, has_ended, membership_of
from shoal_workers.service.service import share_of

MEMBERSHIP = membership_of("this")


@pytest.fixture
def pool(queue: Queue) -> Pool:
    return Pool(queue.broker, queue.keys, alive_s=3_600)


@contextmanager
def running(program: bytes | None = None) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a process of Python, or of `program`, until the end of the `with` block."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], executable=program, stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def membership_in(pid: int) -> Membership:
    namespace, _, _ = MEMBERSHIP.name.split(":")
    return MEMBERSHIP._replace(name=f"{namespace}:{pid}:other")


def test_a_killed_process_has_ended_at_once_and_a_suspended_one_has_not() -> None:
    with running() as process:
        name = membership_in(process.pid).name
        assert not has_ended(name)
        process.send_signal(signal.SIGSTOP)
        assert not has_ended(name)
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # leaves it a zombie
        assert has_ended(name)
        process.wait()
        assert has_ended(name)


def test_a_process_in_another_namespace_has_not_ended() -> None:
    with running() as process:
        process.kill()
        process.wait()
        own = MEMBERSHIP.name.partition(":")[0]
        assert has_ended(f"{own}:{process.pid}:other")
        for name in (f"0:{process.pid}:w", f"7:{process.pid}:w", "", "w", "1:2", f"{own}:-1:w", f"{own}:{10**30}:w"):
            assert not has_ended(name)


def test_a_heartbeat_counts_workers_that_start_leave_and_are_killed(pool: Pool) -> None:
    counts: list[int] = []
    heart = Heartbeat(pool, "this", dict, membership=MEMBERSHIP, note_sharing=counts.append)
    elsewhere = MEMBERSHIP._replace(name="7:1:elsewhere")
    heart.beat()
    pool.announce("elsewhere", membership=elsewhere)
    heart.beat()
    with running() as process:
        pool.announce("other", membership=(other := membership_in(process.pid)))
        heart.beat()
    heart.beat()
    pool.leave("other", other)  # then as many workers as before, with other names
    pool.announce("new", membership=MEMBERSHIP._replace(name="7:2:new"))
    heart.beat()
    pool.leave("elsewhere", elsewhere)
    heart.beat()
    assert counts == [1, 2, 3, 2, 3, 2]
    assert pool.alive() == {"this", "new"}


def test_names_are_sent_when_their_number_changes(pool: Pool) -> None:
    assert pool.announce("this", membership=MEMBERSHIP).sharing == (MEMBERSHIP.name,)
    assert pool.announce("this", membership=MEMBERSHIP, num_known=1).sharing is None
    pool.announce("other", membership=MEMBERSHIP._replace(name="7:1:other"))
    announced = pool.announce("this", membership=MEMBERSHIP, num_known=1)
    assert announced.num_sharing == 2
    assert announced.sharing is not None
    assert set(announced.sharing) == {MEMBERSHIP.name, "7:1:other"}


def test_a_worker_of_another_container_counts_until_its_heartbeat_expires(pool: Pool) -> None:
    brief = Pool(pool.broker, pool.keys, alive_s=0.05)
    brief.announce("other", membership=MEMBERSHIP._replace(name="7:1:other"))
    wait_until(lambda: not pool.sharing(MEMBERSHIP.group))
    assert pool.announce("this", membership=MEMBERSHIP).num_sharing == 1


def test_workers_on_other_processors_do_not_count(pool: Pool) -> None:
    pool.announce("other", membership=Membership("others", "7:1:other"))
    assert pool.announce("this", membership=MEMBERSHIP).num_sharing == 1
    assert pool.announce("that").num_sharing == 0


def test_when_the_clock_of_redis_is_set_back_no_neighbour_counts_for_longer(queue: Queue, pool: Pool) -> None:
    names = [MEMBERSHIP.name, "7:1:other"]
    for name in names:
        pool.announce(name, membership=MEMBERSHIP._replace(name=name))
    key = pool.keys.processors(MEMBERSHIP.group)
    for name in names:
        queue.redis.zincrby(key, 20_000, name)
    pool.announce("this", membership=MEMBERSHIP)
    until_ms = dict(queue.redis.zrange(key, 0, -1, withscores=True))
    assert until_ms[b"7:1:other"] == until_ms[MEMBERSHIP.name.encode()]


def test_a_worker_that_replaces_a_dead_one_has_all_its_threads(pool: Pool) -> None:
    settings = Settings(threads=0)
    alone = share_of(settings, pool).threads
    with running() as process:
        pool.announce("other", membership=membership_in(process.pid))
        assert share_of(settings, pool).threads == max(1, alone // 2)
        process.kill()
        process.wait()
        assert share_of(settings, pool).threads == alone
