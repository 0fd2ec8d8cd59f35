"""An event loop that runs in its own thread and runs coroutines for other threads."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import RLock, Thread, current_thread
from typing import Any, TypeVar

from shoal.queue.dispatcher import closed

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread, which runs from the first call until `close`. Thread-safe.

    `at_end` is awaited before the loop ends. `num_threads` is the number of threads for blocking work. Its default is
    asyncio's.
    """

    def __init__(
        self, at_end: Callable[[], Awaitable[object]], name: str = "shoal-client", num_threads: int | None = None
    ):
        self._at_end = at_end
        self._num_threads = num_threads
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Thread(target=self._serve, name=name, daemon=True)
        self._stopping = asyncio.Event()
        self._is_closed = False
        self._lock = RLock()  # reentrant, as the garbage collector may call `post` in a thread that holds the lock

    def run(self, make: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a coroutine in the loop. Cancel the coroutine if this thread stops waiting (Ctrl-C)."""
        if current_thread() is self._thread:
            raise RuntimeError("the event loop of this client would wait for itself: await its AsyncClient there")
        with self._lock:
            if (loop := self._begun()) is None:
                raise closed()
            running = asyncio.run_coroutine_threadsafe(_awaited(make), loop)
        try:
            return running.result()
        except CancelledError:
            raise closed() from None
        except BaseException:
            running.cancel()
            raise
        finally:
            del running  # breaks a cycle of error and frame, which only the garbage collector would free

    def post(self, callback: Callable[[], Any]) -> bool:
        """Have the loop call a function soon, without waiting; return False if the thread is closed."""
        with self._lock:
            if loop := self._begun():
                loop.call_soon_threadsafe(callback)
            return loop is not None

    def _begun(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop, which is started if it does not run; None if the thread is closed."""
        if self._loop is None and not self._is_closed:
            self._loop = asyncio.new_event_loop()
            self._loop.set_default_executor(ThreadPoolExecutor(self._num_threads, "shoal-client-thread"))
            self._thread.start()
        return None if self._is_closed else self._loop

    def close(self) -> None:
        """Await `at_end`, then end the thread. Waiting threads get Unavailable."""
        with self._lock:
            self.post(self._stopping.set)
            self._is_closed = True
        self._thread.join()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # type: ignore[arg-type, return-value]
            runner.run(self._wait())

    async def _wait(self) -> None:
        await self._stopping.wait()
        await self._at_end()


async def _awaited(make: Callable[[], Awaitable[T]]) -> T:
    return await make()
