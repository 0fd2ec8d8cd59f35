"""The asynchronous parts of a queue for tests without an event loop: their I/O blocks the thread."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from shoal.broker.async_broker import AsyncBroker, ConnectionMaker
from shoal.broker.broker import Broker, Script
from shoal.cache.lookup import CacheLookup, LookupResult
from shoal.changes import change_log
from shoal.changes.change import Change
from shoal.client.redis.loop_thread import LoopThread
from shoal.contract.jobs import Job
from shoal.contract.keys import Keys
from shoal.contract.replies import Reply
from shoal.errors import ShoalError
from shoal.queue import dead_letters
from shoal.queue.consumer import Consumer
from shoal.queue.dispatcher import Dispatcher, Pending
from shoal.queue.pool import ALIVE_S, AsyncPool
from shoal.queue.pool import Pool as WorkersPool
from shoal.queue.producer import Producer, ReplyStream
from shoal_api.viewers.pool_meter import PoolSnapshot

P = ParamSpec("P")
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


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that blocks, made from a coroutine method of an object's `asynchronous` part."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_now(method(self.asynchronous, *args, **kwargs))

    return call


class Pool(WorkersPool):
    """The workers of a pool, with the methods of workers and of clients."""

    def __init__(self, broker: Broker, keys: Keys, alive_s: float = ALIVE_S):
        super().__init__(broker, keys, alive_s)
        self.asynchronous = AsyncPool(commands_of(broker), keys)

    first_heartbeats = blocking(AsyncPool.first_heartbeats)
    texts_per_s = blocking(AsyncPool.texts_per_s)


class BlockingProducer:
    """A producer for threads."""

    def __init__(self, broker: Broker, keys: Keys, result_ttl_s: int = 3_600):
        self.asynchronous = Producer(commands_of(broker), keys, result_ttl_s)
        self.broker = broker
        self.keys = keys
        self.result_ttl_s = result_ttl_s
        self.pool = Pool(broker, keys)

    put = blocking(Producer.put)
    put_once = blocking(Producer.put_once)
    put_many = blocking(Producer.put_many)
    holds = blocking(Producer.holds)
    withdraw = blocking(Producer.withdraw)
    cancel = blocking(Producer.cancel)
    status = blocking(Producer.status)
    read_result = blocking(Producer.read_result)
    loads = blocking(Producer.loads)
    watch_result = blocking(Producer.watch_result)
    limits = blocking(Producer.limits)
    check_lanes = blocking(Producer.check_lanes)
    num_dead = blocking(Producer.num_dead)
    unread_load = blocking(Producer.unread_load)

    def inbox(self, address: str) -> "Inbox":
        """Return the stream of the replies to jobs with that reply address."""
        return Inbox(self.broker, self.keys.replies(address))

    def backlog(self) -> dict[str, int]:
        """Return the number of unanswered jobs in each lane. Jobs that a worker holds count too."""
        return {lane: load.num_jobs for lane, load in self.loads().items()}


class Inbox:
    """The replies at one address, for a thread. `wait` blocks the thread."""

    def __init__(self, broker: Broker, key: str):
        self.asynchronous = ReplyStream(commands_of(broker), key)

    wait = blocking(ReplyStream.wait)


class Unread:
    """The unread results, with the methods of clients and of workers."""

    def __init__(self, producer: BlockingProducer):
        self.sweep = Consumer(producer.broker, producer.keys, "sweeper").sweep_unread
        self.load = producer.unread_load


class DeadLetters:
    """The dead letters of a pool, for a thread."""

    def __init__(self, producer: BlockingProducer):
        self.asynchronous = dead_letters.DeadLetters(producer.asynchronous)
        self._producer = producer

    def __len__(self) -> int:
        return self._producer.num_dead()

    newest = blocking(dead_letters.DeadLetters.newest)
    get = blocking(dead_letters.DeadLetters.get)
    retry = blocking(dead_letters.DeadLetters.retry)
    drop = blocking(dead_letters.DeadLetters.drop)


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


class Lookup:
    """A client's look-up in the cache, for a thread."""

    def __init__(self, producer: BlockingProducer, **options: Any):
        pool = producer.asynchronous.pool
        self.asynchronous = CacheLookup(commands_of(producer.broker), producer.keys, pool, **options)

    def find(self, job: Job) -> LookupResult:
        """Look up the texts of a job."""
        return run_now(self.asynchronous.find(job))


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

    def done(self) -> bool:
        """Return True once the reply or an error has come."""
        return self._pending.done()

    def result(self, timeout_s: float) -> Reply:
        """Return the reply. Raises its error."""
        return Reply.join([self._dispatcher.run(self._pending.within(timeout_s))])
