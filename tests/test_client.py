"""The client for threads: one dispatcher serves them all. `test_clients.py` has all that other clients do too."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import wait_until
from queues import queue_of
from test_clients import TEXTS

from shoal import Client
from shoal.errors import Unavailable
from shoal.options import Options
from shoal_workers.encoding.encoder import Encoder


@pytest.mark.usefixtures("serving")
def test_many_threads_share_one_dispatcher(client: Client, encoder: Encoder) -> None:
    expected = encoder.embed(TEXTS, Options(), "")
    before = threading.active_count()
    with ThreadPoolExecutor(32) as threads:
        vectors = list(threads.map(client.embed, TEXTS))
        assert threading.active_count() <= before + 32 + 2
    assert np.stack(vectors) == pytest.approx(expected, abs=1e-5)


def test_closing_wakes_waiting_threads_and_leaves_no_thread(redis_url: str, client: Client) -> None:
    other = Client(redis_url, key_prefix=client.keys.prefix, pool=client.keys.pool)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(other.embed, text) for text in TEXTS[:4]]
        wait_until(lambda: queue_of(client).backlog()["interactive"] == 4)
        other.close()
        assert all(isinstance(future.exception(), Unavailable) for future in waiting)
