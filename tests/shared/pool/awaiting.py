"""Functions for tests in an event loop: make a client, answer jobs, wait for a condition."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, ParamSpec

import numpy as np
from conftest import PATIENCE_S, repeating
from queues import Queue
from tcp_proxy import Proxy

from shoal import AsyncClient
from shoal.contract.jobs import LANES, Job
from shoal.contract.replies import Reply
from shoal.queue.consumer import Answer

P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Return a test that runs an asynchronous test in its own event loop."""

    @wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*args, **named))

    return run


def async_client(queue: Queue, url: str, **settings: Any) -> AsyncClient:
    """Return a client of the queue's pool."""
    own: dict[str, Any] = {"key_prefix": queue.keys.prefix, "pool": queue.keys.pool, "timeout_s": PATIENCE_S}
    return AsyncClient(url, **(own | settings))


async def wait_for(is_true: Callable[[], object]) -> None:
    """Let other tasks run until the condition holds; fail the test if it does not."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():
            await asyncio.sleep(0.01)


def reply_to(job: Job) -> Reply:
    """Return a reply to the job. The vector of a text is its number of characters."""
    sizes = [len(text) for text in job.texts]
    return Reply(job.id, vectors=np.array(sizes, np.float32)[:, None], tokens=sizes, truncated=[False] * len(sizes))


def answer_all(queue: Queue, make_reply: Callable[[Job], Reply] = reply_to) -> int:
    """Answer all waiting jobs with replies from the function; return the number of jobs."""
    deliveries = queue.take("a", LANES, 1_000)
    jobs = [delivery.job() for delivery in deliveries]
    pairs = zip(deliveries, jobs, strict=True)
    return queue.reply([Answer(delivery, make_reply(job), job.reply_to) for delivery, job in pairs])


def answering(queue: Queue, make_reply: Callable[[Job], Reply] = reply_to) -> AbstractContextManager[None]:
    """Answer jobs in a thread with replies from the function."""
    return repeating(lambda: answer_all(queue, make_reply), pause_s=0.01)


def num_interactive(queue: Queue) -> int:
    """Return the number of unanswered interactive jobs."""
    return queue.backlog()["interactive"]


async def outcomes(tasks: Sequence[asyncio.Task[Any]]) -> list[Any]:
    """Return the results and errors of the tasks."""
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(*tasks, return_exceptions=True)


def url_of(proxy: Proxy) -> str:
    """Return the URL of the Redis behind the proxy. Connections to it wait up to `PATIENCE_S` for an answer."""
    return f"redis://127.0.0.1:{proxy.port}/0?socket_timeout={PATIENCE_S}&socket_connect_timeout={PATIENCE_S}"
