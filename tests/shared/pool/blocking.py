"""The asynchronous parts of a queue for tests without an event loop: their I/O blocks the thread."""

from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from shoal.broker.async_broker import AsyncBroker, ConnectionMaker
from shoal.broker.broker import Broker, Script
from shoal.cache.lookup import CacheLookup
from shoal.changes import change_log
from shoal.changes.change import Change
from shoal.client.redis.loop_thread import LoopThread
from shoal.contract.jobs import Job
from shoal.contract.keys import Keys
from shoal.contract.replies import Reply
from shoal.errors import ShoalError
from shoal.queue import dead_letters
from shoal.queue.dispatcher import Dispatcher, Pending
from shoal.queue.pool import ALIVE_S, AsyncPool
from shoal.queue.pool import Pool as WorkersPool
from shoal.queue.producer import Producer, ReplyStream
from shoal_api.pool.pool_snapshot import PoolSnapshot

T = TypeVar("T")


class Commands:
    """A broker's commands as coroutines. Each blocks the thread until it is answered, and never waits for a loop."""

    def __init__(self, broker: Broker):
        self.broker = broker

    async def execute(self, *command: Any, block_s: float = 0.0) -> Any:
        """Return the answer to one command."""
        return self.broker.execute(*command, block_s=block_s)

    async def pipeline(self, *commands: Sequence[Any], block_s: float = 0.0) -> list[Any]:
        """Return the answers to several commands."""
        return self.broker.pipeline(*commands, block_s=block_s)

    async def run(self, script: Script, keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
        """Return the result of a script."""
        return self.broker.run(script, keys, arguments)

    async def run_many(self, script: Script, keys: Sequence[str], calls: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return the result of each call of a script, or its error."""
        outcomes: list[Any] = []
        for call in calls:
            try:
                outcomes.append(self.broker.run(script, keys, call))
            except ShoalError as error:
                outcomes.append(error)
        return outcomes


def commands_of(broker: Broker) -> AsyncBroker:
    """Return a broker's commands in place of an `AsyncBroker`."""
    return cast(AsyncBroker, Commands(broker))


def run_now(steps: Awaitable[T]) -> T:
    """Return the result of a coroutine that never waits for an event loop."""
    try:
        next(steps.__await__())
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a coroutine that was to block waits for an event loop")


class Blocking:
    """An asynchronous object whose coroutine methods block the thread."""

    def __init__(self, asynchronous: Any):
        self.asynchronous = asynchronous

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.asynchronous, name)
        return (lambda *args, **options: run_now(found(*args, **options))) if iscoroutinefunction(found) else found


class Pool(Blocking, WorkersPool):
    """The workers of a pool, with the methods of workers and of clients."""

    def __init__(self, broker: Broker, keys: Keys, alive_s: float = ALIVE_S):
        WorkersPool.__init__(self, broker, keys, alive_s)
        self.asynchronous = AsyncPool(commands_of(broker), keys)


class BlockingProducer(Blocking):
    """A producer for threads."""

    def __init__(self, broker: Broker, keys: Keys, result_ttl_s: int = 3_600):
        super().__init__(Producer(commands_of(broker), keys, result_ttl_s))
        self.broker = broker
        self.keys = keys
        self.result_ttl_s = result_ttl_s
        self.pool = Pool(broker, keys)

    def inbox(self, address: str) -> "Inbox":
        """Return the stream of the replies to jobs with that reply address."""
        return Inbox(ReplyStream(commands_of(self.broker), self.keys.replies(address)))

    def backlog(self) -> dict[str, int]:
        """Return the number of unanswered jobs in each lane. Jobs that a worker holds count too."""
        return {lane: load.num_jobs for lane, load in self.loads().items()}


class Inbox(Blocking):
    """The replies at one address, for a thread."""

    def wait(self, timeout_s: float = 0.25) -> list[Reply]:
        """Return replies; wait up to `timeout_s` for the first one."""
        return list(run_now(self.asynchronous.wait(timeout_s)))


class DeadLetters(Blocking):
    """The dead letters of a pool, for a thread."""

    def __init__(self, producer: BlockingProducer):
        super().__init__(dead_letters.DeadLetters(producer.asynchronous))
        self._producer = producer

    def __len__(self) -> int:
        return int(self._producer.num_dead())

    def newest(self, max_letters: int = 100) -> list[dead_letters.DeadLetter]:
        """Return the newest letters."""
        return list(run_now(self.asynchronous.newest(max_letters)))


def read_pool(producer: BlockingProducer) -> PoolSnapshot:
    """Return a snapshot of the pool."""
    return run_now(PoolSnapshot.take(producer.asynchronous))


class ChangeLog(change_log.ChangeLog):
    """The logs of changes of a pool's indexes, for readers and writers."""

    def append(self, index: str, change: Change) -> str:
        """Add a change to the log of an index, and return its position."""
        return run_now(change_log.append(commands_of(self._broker), self._keys, index, change))


def as_written(log: change_log.ChangeLog) -> ChangeLog:
    """Return a log for writers, over the connections of a reader's log."""
    return ChangeLog(log._broker, log._keys)


class Lookup(Blocking):
    """A client's look-up in the cache, for a thread."""

    def __init__(self, producer: BlockingProducer, **options: Any):
        pool = producer.asynchronous.pool
        super().__init__(CacheLookup(commands_of(producer.broker), producer.keys, pool, **options))


class ThreadDispatcher:
    """A dispatcher for threads, in its own event loop. `producer` is the class of its producer."""

    def __init__(self, queue: BlockingProducer, producer: type[Producer] = Producer):
        found = queue.broker.connection_pool.connection_kwargs
        url = f"redis://{found['host']}:{found['port']}/{found.get('db', 0)}"
        maker = ConnectionMaker(url, found["socket_timeout"])
        self._thread = LoopThread(self._close)

        async def start() -> Dispatcher:
            self._broker = AsyncBroker(maker)
            self.producer = producer(self._broker, queue.keys, queue.result_ttl_s)
            return Dispatcher(self.producer)

        self.asynchronous = self.run(start())
        self.address = self.asynchronous.address

    def run(self, steps: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine in the loop."""
        return self._thread.run(lambda: steps)

    def send(self, lane: str, jobs: Sequence[Job], client: str = "") -> list["ThreadPending"]:
        """Send the client's jobs, and return the pending reply to each."""

        async def send() -> list[Pending]:
            return self.asynchronous.send(lane, jobs, client)

        return [ThreadPending(self, pending) for pending in self.run(send())]

    def forget(self, jobs: Sequence[Job]) -> None:
        """Ignore the replies to the jobs from now on."""

        async def forget() -> None:
            self.asynchronous.forget(jobs)

        self.run(forget())

    def wait_result(self, job_id: str, timeout_s: float) -> Reply | None:
        """Return the reply to a submitted job."""
        return self.run(self.asynchronous.wait_result(job_id, timeout_s))

    def close_inside(self) -> None:
        """Close the dispatcher, but not its loop."""
        self.run(self.asynchronous.close())

    def close(self) -> None:
        """Close the dispatcher and its loop."""
        self._thread.close()

    async def _close(self) -> None:
        await self.asynchronous.close()
        await self._broker.close()


class ThreadPending:
    """A pending reply, for threads."""

    def __init__(self, dispatcher: ThreadDispatcher, pending: Pending):
        self._dispatcher = dispatcher
        self._pending = pending

    @property
    def is_put(self) -> bool:
        """Return True once the job is in its lane."""
        return self._pending.is_put

    def result(self, timeout_s: float) -> Reply:
        """Return the reply. Raises its error."""
        return Reply.join([self._dispatcher.run(self._pending.within(timeout_s))])
