"""The client for threads, which share one dispatcher. `test_clients.py` has the tests that all clients share."""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import wait_until
from queues import queue_of
from test_clients import TEXTS

from shoal import AsyncClient, Client
from shoal.errors import Unavailable, UnknownJob


def test_closing_wakes_waiting_threads_and_leaves_no_thread(redis_url: str, client: Client) -> None:
    other = Client(redis_url, key_prefix=client.keys.prefix, pool=client.keys.pool)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(other.embed, text) for text in TEXTS[:4]]
        wait_until(lambda: queue_of(client).backlog()["interactive"] == 4)
        other.close()
        assert all(isinstance(future.exception(), Unavailable) for future in waiting)


def test_ctrl_c_withdraws_the_jobs_of_the_waiting_thread(client: Client) -> None:
    main, queue = threading.main_thread(), queue_of(client)
    client.timeout_s = 3_600  # so that no timeout withdraws the job

    def interrupt() -> None:
        wait_until(lambda: queue.backlog()["interactive"] == 1)
        signal.pthread_kill(main.ident or 0, signal.SIGINT)

    assert threading.current_thread() is main
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        client.embed("storm")
    interrupting.join()
    wait_until(lambda: queue.backlog()["interactive"] == 0)


def test_a_call_from_the_clients_own_loop_is_refused(client: Client) -> None:
    async def embed(own: AsyncClient) -> None:
        client.embed("storm")

    with pytest.raises(RuntimeError, match="would wait for itself"):
        client.run(embed)


def test_the_texts_of_a_stream_are_read_in_the_thread_that_reads_its_vectors(client: Client) -> None:
    seen: list[int] = []

    def texts() -> Iterator[str]:
        seen.append(threading.get_ident())
        with pytest.raises(UnknownJob):  # the texts' source may use the client too
            client.job("nobody").status()
        yield "storm"

    stream = client.embed_stream(texts())
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(next, stream)
        wait_until(lambda: queue_of(client).backlog()["bulk"] == 1)
        client.close()
        assert isinstance(waiting.exception(), Unavailable)
    assert seen != [threading.get_ident()]
