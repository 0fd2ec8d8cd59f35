"""A simulation of many processes: measures what a job costs Redis with few and with many, at the same rate of jobs.

Workers and clients are the real ones, each with connections of its own, on threads of a few processes: 200 worker
processes would need some 30 GB. The workers compute nothing, so nearly all of them are idle at any time, which is when
many processes cost most for a job.
"""

import argparse
import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, cast

import redis
from benchmarks.waiting import WaitingEngine
from stack import free_port

from shoal import Client
from shoal.broker import embedded
from shoal.broker.broker import Broker
from shoal.cache.cache import Cache
from shoal.cache.table import Table, num_places
from shoal.operations import Embed
from shoal.process.progress import wait_until
from shoal.queue.consumer import Consumer
from shoal.queue.lane import LaneLimits
from shoal.settings import Settings
from shoal.supervisor.process import Service
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.tokenizer import Tokenizer, Tokens
from shoal_workers.loop.worker import Worker
from shoal_workers.model.model import Model
from shoal_workers.service import service

#: The processes that the threads are on, for workers and for clients.
NUM_PROCESSES = 4

#: Threads that ask for something, in all clients together.
NUM_CALLERS = 100

#: One job in this many is submitted and its result is fetched; the others are calls that wait.
SUBMITTED_EVERY = 4

WARM_UP_S, READY_WITHIN_S, STOP_WITHIN_S = 4.0, 60.0, 30.0

MODEL = Model("none", "", "none", 384, 256, "mean")


@dataclass
class Fleet:
    """The workers or clients of those numbers, on the threads of one process, until `stopping` is set."""

    url: str
    numbers: Sequence[int]
    num_clients: int
    rate: float
    num_done: Any
    stopping: Any

    def work(self) -> None:
        """Run workers."""
        with ExitStack() as stack:
            workers = [stack.enter_context(_worker(self.url)) for _ in self.numbers]
            threads = [threading.Thread(target=worker.run) for worker in workers]
            for thread in threads:
                thread.start()
            self.stopping.wait()
            for worker in workers:
                worker.stop()
            for thread in threads:
                thread.join()

    def call(self) -> None:
        """Run clients, each with its part of the callers."""
        with ExitStack() as stack:
            clients = {number: stack.enter_context(Client(self.url)) for number in self.numbers}
            callers = [
                threading.Thread(target=self._call, args=(clients[number % self.num_clients], number))
                for number in range(NUM_CALLERS)
                if number % self.num_clients in clients
            ]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()

    def _call(self, client: Client, number: int) -> None:
        """Ask for a vector at the times of this caller, which it shares evenly with the others."""
        pause_s = NUM_CALLERS / self.rate
        next_at, num_asked = time.monotonic() + pause_s * number / NUM_CALLERS, 0
        while not self.stopping.wait(max(0.0, next_at - time.monotonic())):
            job = Embed([f"storm {num_asked} of caller {number}"])
            if (number + num_asked) % SUBMITTED_EVERY:
                client.call(job)
            else:
                client.job(client.put(job)).result()
            with self.num_done.get_lock():
                self.num_done.value += 1
            num_asked += 1
            next_at = max(next_at + pause_s, time.monotonic())


class _NoTokenizer:
    digest = ""

    def encode(self, texts: Sequence[str], side: str = "right") -> list[Tokens]:
        return [Tokens((1, 2, 3)) for _ in texts]


@contextmanager
def _worker(url: str) -> Iterator[Worker]:
    """A worker as `shoal worker` makes it, but for the model and the engine."""
    settings = Settings(redis_url=url)
    keys, broker = settings.keys, Broker.connect(url, service.ANSWER_S)
    encoder = Encoder(MODEL, cast(Tokenizer, _NoTokenizer()), cast(Any, WaitingEngine(MODEL.dimension, 0.0)))
    places = num_places(settings.cache_mb, MODEL.dimension, keys)
    cache = Cache(broker, keys, Table(MODEL.name, MODEL.dimension, MODEL.pooling, "none", places, {}, ""))
    consumer = Consumer(broker, keys, service.new_worker_id())
    worker = Worker(consumer, encoder, {}, Bucketing(settings.max_batch_tokens, True), cache=cache)
    try:
        with service.announced(worker, LaneLimits()):
            yield worker
    finally:
        broker.close()


def measure(num_workers: int, num_clients: int, args: argparse.Namespace) -> dict[str, float]:
    """Return what a job costs with these numbers of workers and clients, on a Redis of its own."""
    context, processes = multiprocessing.get_context("spawn"), []
    stopping, num_done = context.Event(), context.Value("l", 0)
    with _redis(args.server) as url, redis.Redis.from_url(url) as connection:

        def start(number: int, run: Any) -> None:
            for first in range(min(number, NUM_PROCESSES)):
                numbers = range(first, number, NUM_PROCESSES)
                fleet = Fleet(url, numbers, num_clients, args.rate, num_done, stopping)
                processes.append(context.Process(target=run, args=(fleet,)))
                processes[-1].start()

        try:
            start(num_workers, Fleet.work)
            alive = Settings(redis_url=url).keys.alive
            wait_until("the workers", lambda: connection.zcard(alive) == num_workers, READY_WITHIN_S)
            start(num_clients, Fleet.call)
            wait_until("the clients", lambda: num_done.value > NUM_CALLERS, READY_WITHIN_S)
            time.sleep(WARM_UP_S)
            connection.config_resetstat()
            before, num_before, started_s = connection.info(), num_done.value, time.monotonic()
            time.sleep(args.seconds)
            after, num_jobs, seconds = connection.info(), num_done.value - num_before, time.monotonic() - started_s
            if args.commands:
                _print_commands(connection.info("commandstats"), num_jobs)
        finally:
            stopping.set()
            for process in processes:
                process.join(STOP_WITHIN_S)
                process.kill()
    return {"jobs/s": num_jobs / seconds} | _costs(before, after, num_jobs)


def _costs(before: dict[str, Any], after: dict[str, Any], num_jobs: int) -> dict[str, float]:
    """Return what Redis spent on each job between two of its reports."""

    def spent(*names: str) -> float:
        return sum(float(after[name]) - float(before[name]) for name in names) / num_jobs

    return {
        "processor time a job, us": 1e6 * spent("used_cpu_user", "used_cpu_sys"),
        "commands a job": spent("total_commands_processed"),
        "bytes in a job": spent("total_net_input_bytes"),
        "bytes out a job": spent("total_net_output_bytes"),
        "connections opened a job": spent("total_connections_received"),
        "connections": float(after["connected_clients"]),
    }


def _print_commands(stats: dict[str, dict[str, float]], num_jobs: int) -> None:
    for name, about in sorted(stats.items(), key=lambda pair: -pair[1]["usec"])[:15]:
        calls, us = about["calls"] / num_jobs, about["usec"] / num_jobs
        print(f"  {name.removeprefix('cmdstat_'):20}{calls:10.2f} a job{us:10.1f} us a job")


@contextmanager
def _redis(server: str) -> Iterator[str]:
    with TemporaryDirectory(prefix="simulate-") as home:
        port = free_port()
        settings = Settings(redis_url=f"redis://127.0.0.1:{port}/0", redis_port=port, home=home)
        command = embedded.command(settings)
        service = Service("redis", [server or command[0], *command[1:]], {})
        service.start()
        try:
            with redis.Redis.from_url(settings.redis_url) as connection:
                wait_until("redis", lambda: _answers(connection), READY_WITHIN_S)
            yield settings.redis_url
        finally:
            service.stop()


def _answers(connection: Any) -> bool:
    try:
        return bool(connection.ping())
    except redis.ConnectionError:
        return False


def main() -> None:
    """Print the costs with few and with many, measured in turns, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=200, help="many workers")
    parser.add_argument("--clients", type=int, default=50, help="many clients")
    parser.add_argument("--rate", type=float, default=300.0, help="jobs a second, of all clients together")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a measurement")
    parser.add_argument("--runs", type=int, default=1, help="measurements of each; medians are printed")
    parser.add_argument("--server", default="", help="the redis-server or valkey-server to measure")
    parser.add_argument("--commands", action="store_true", help="print the commands that take most time as well")
    args = parser.parse_args()
    pairs = [(measure(2, 1, args), measure(args.workers, args.clients, args)) for _ in range(args.runs)]
    print(f"| | 2 workers, 1 client | {args.workers} workers, {args.clients} clients | ratio |\n|---|---|---|---|")
    for name in pairs[0][0]:
        few, many = (median(one[name] for one in of) for of in zip(*pairs, strict=True))
        print(f"| {name} | {few:,.1f} | {many:,.1f} | {many / few if few else 1:.2f} |")


if __name__ == "__main__":
    main()
