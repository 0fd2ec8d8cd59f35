"""Redis killed in the middle of a load and started again with its append-only log: what it took in is answered."""

from collections.abc import Sized
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from signal import SIGKILL

from conftest import RedisServer, wait_until
from load import Load
from process import Process

from shoal import Client

NUM_KILLS = 3


def longer_than(found: Sized, num: int) -> bool:
    """Return whether more than so many were found."""
    return len(found) > num


def test_every_job_that_was_accepted_is_answered_right(tmp_path: Path, tiny_source: Path, home: Path) -> None:
    server = RedisServer(tmp_path, appendfsync="always")
    settings = {"redis_url": server.url, "model": tiny_source, "home": home, "cache_mb": 0}
    with ExitStack() as stack, Client(server.url) as client:
        stack.callback(server.stop)
        server.start()
        workers = [stack.enter_context(Process(tmp_path / f"{n}.log", "worker", **settings)) for n in range(2)]
        with Load(client) as load:
            for _ in range(NUM_KILLS):
                num_before, num_errors = len(load.accepted), len(load.errors)
                wait_until(partial(longer_than, load.accepted, num_before + 100))
                server.stop(SIGKILL)
                wait_until(partial(longer_than, load.errors, num_errors))
                server.start()
                num_back = len(load.accepted)
                wait_until(partial(longer_than, load.accepted, num_back))
        load.check(load.accepted)
        assert {error.code for error in load.errors} == {"unavailable"}
        assert client.queue.backlog() == {"interactive": 0, "bulk": 0}
        assert [worker.terminate() for worker in workers] == [0, 0]
