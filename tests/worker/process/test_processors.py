"""The processors that a worker may use, and its share of them while other workers start, end and die."""

import os
from pathlib import Path

import pytest
from blocking import Pool
from conftest import wait_until
from queues import Queue

from shoal.settings import Settings
from shoal_workers.process import processors
from shoal_workers.process.heartbeat import Heartbeat
from shoal_workers.service.compute_threads import GROW_AFTER_S, SHRINK_AFTER_S, ProcessorShare
from shoal_workers.service.service import share_of

GROUP, ALMOST_S = processors.group(), 0.9


def test_the_quota_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cpu.max"
    assert processors.quota(path) is None
    for limit, expected in (("150000", 1.5), ("max", None), ("50000", 0.5)):
        path.write_text(f"{limit} 100000\n")
        assert processors.quota(path) == expected
    assert 0 < processors.available() <= len(os.sched_getaffinity(0))
    assert processors.machine_id() == processors.machine_id() != ""


def share(num_workers: int, num_expected: int = 1, fixed_threads: int = 0) -> ProcessorShare:
    """Return the share, of eight processors, of a worker that starts as one of `num_workers`."""
    return ProcessorShare(num_workers, num_expected, fixed_threads, lambda: 8.0)


def updates(of: ProcessorShare, *counts: int, first_s: float = 0.0, every_s: float = 1.0) -> list[int]:
    return [of.update(count, first_s + n * every_s) for n, count in enumerate(counts)]


@pytest.mark.parametrize("line", ["flags\t\t: fpu avx2 fma", "Features\t: fpu avx2 fma"])
def test_the_flags_of_x86_and_of_arm_are_read(tmp_path: Path, line: str) -> None:
    (about := tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n\nprocessor\t: 1\n{line}\n")
    assert {"fpu", "avx2", "fma"} <= processors._flags(about)


def test_a_worker_starts_with_its_share_which_grows_soon_and_shrinks_later() -> None:
    assert [share(number).threads for number in (0, 1, 2, 3, 8, 20)] == [8, 8, 4, 2, 1, 1]
    assert ProcessorShare(1, available=lambda: 1.9).threads == ProcessorShare(1, available=lambda: 0.5).threads == 1
    one = share(2)
    assert updates(one, 1, 1, every_s=ALMOST_S * GROW_AFTER_S) == [4, 4]
    assert one.update(1, GROW_AFTER_S) == 8
    assert updates(one, 2, 2, first_s=100, every_s=ALMOST_S * SHRINK_AFTER_S) == [8, 8]
    assert one.update(2, 100 + SHRINK_AFTER_S) == 4
    assert updates(share(4), 2, 2, 1, every_s=GROW_AFTER_S) == [2, 4, 4]
    assert updates(share(3), *[2] * int(GROW_AFTER_S + 1)) == [2, 2, 2, 4]  # the new worker of a rolling restart
    limit = [8.0]
    one = ProcessorShare(2, available=lambda: limit[0])
    limit[0] = 4.0
    assert updates(one, *[2] * int(SHRINK_AFTER_S + 1))[-1] == 2


@pytest.mark.parametrize(
    ("of", "counts"),
    [
        (share(2), [*[3] * int(SHRINK_AFTER_S - 1), 2]),  # the old worker in a rolling restart
        (share(2), [2, 1, 1, 2] * 10),  # a worker that is gone for a moment
        (share(2), [1, 4, 4] * 10),  # a larger share does not hasten a smaller one
        (share(1, 2), [1] * 60),  # a share leaves room for all workers of its supervisor
        (share(1, 1, 4), [*[5] * 60, *[1] * 60]),  # a fixed number of threads
    ],
)
def test_a_share_stays(of: ProcessorShare, counts: list[int]) -> None:
    assert {of.threads, *updates(of, *counts)} == {4}


def test_heartbeats_count_the_workers_on_the_same_processors(queue: Queue) -> None:
    pool, settings, counts = Pool(queue.broker, queue.keys, alive_s=3_600), Settings(threads=0), list[int]()
    alone = share_of(settings, pool).threads
    heart = Heartbeat(pool, "this", dict, group=GROUP, note_sharing=counts.append)
    heart.beat()
    pool.announce("other", group=GROUP)
    pool.announce("elsewhere", group="others")
    pool.announce("alone")
    heart.beat()
    assert pool.sharing(GROUP) == {"this", "other"}
    pool.leave("other", GROUP)
    heart.beat()
    assert counts == [1, 2, 1]
    assert share_of(settings, pool).threads == max(1, alone // 2)
    Pool(pool.broker, pool.keys, alive_s=0.05).announce("this", group=GROUP)  # counts until it expires
    wait_until(lambda: not pool.sharing(GROUP))
    assert share_of(settings, pool).threads == alone
    for worker_id in ("this", "other"):
        pool.announce(worker_id, group=GROUP)
        queue.redis.zincrby(pool.keys.processors(GROUP), 20_000, worker_id)
    assert pool.announce("this", group=GROUP) == 2
    until_ms = dict(queue.redis.zrange(pool.keys.processors(GROUP), 0, -1, withscores=True))
    assert until_ms[b"other"] == until_ms[b"this"]  # Redis's clock was set back, but no worker counts for longer
