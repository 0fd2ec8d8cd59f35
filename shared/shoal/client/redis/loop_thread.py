"""An event loop in a thread of its own, whose results other threads wait for."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, RLock, Thread, current_thread
from typing import Any, Generic, TypeVar

from shoal.queue.dispatcher import closed

T = TypeVar("T")


class _Steps(Generic[T]):
    """Steps that a thread waits for the loop to do. One lock takes a sixth of the time of a `Future`."""

    __slots__ = ("_make", "_task", "error", "result", "settled")

    def __init__(self, make: Callable[[], Awaitable[T]]):
        self._make = make
        self._task: asyncio.Task[None] | None = None
        self.settled = Lock()
        self.settled.acquire()
        self.error: BaseException | None = None
        self.result: T

    def begin(self) -> None:
        """Begin, in the loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        """Cancel them, in the loop."""
        if self._task:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            self.result = await self._make()
        except asyncio.CancelledError:
            self.error = closed()
            raise
        except Exception as error:
            self.error = error
        finally:
            self.settled.release()


class LoopThread:
    """An event loop in a daemon thread, from the first call to `close`, where `at_end` is awaited. Thread-safe.

    `num_threads` is the number of threads for what blocks, by default as asyncio has them.
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
        self._lock = RLock()  # the garbage collector may call `post` while its thread has the lock

    def run(self, make: Callable[[], Awaitable[T]]) -> T:
        """Return the result of what the loop is to await, which is cancelled if this thread gives up, as by Ctrl-C."""
        if current_thread() is self._thread:
            raise RuntimeError("the event loop of this client would wait for itself: await its AsyncClient there")

        steps = _Steps(make)
        try:
            if not self.post(steps.begin):
                raise closed()
            steps.settled.acquire()
            if steps.error:
                raise steps.error
            return steps.result
        except BaseException:
            self.post(steps.cancel)
            raise
        finally:
            steps.error = None  # which has this frame: they would keep each other until the garbage is collected

    def post(self, callback: Callable[[], Any]) -> bool:
        """Have the loop call a function, and do not wait for that; return False if the thread is closed."""
        with self._lock:
            if self._is_closed:
                return False
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_default_executor(ThreadPoolExecutor(self._num_threads, "shoal-client-thread"))
                self._thread.start()
            self._loop.call_soon_threadsafe(callback)
            return True

    def close(self) -> None:
        """End the thread, once `at_end` is done; threads that wait get Unavailable."""
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
