"""A worker that answers at once, with the same vector for every text: a program of the benchmarks, never shipped.

With it, what a request costs is what the API and the queue cost.
"""

import signal
import threading
from contextlib import suppress

import numpy as np

from shoal.errors import ShoalError
from shoal.jobs import LANES, Job
from shoal.queue.delivery import Answer, Delivery
from shoal.queue.pool import Pool
from shoal.queue.queue import Queue
from shoal.replies import TIMINGS, Reply
from shoal.settings import Settings
from shoal_workers.process.heartbeat import Heartbeat

#: Numbers like those of a real vector, which have as many digits.
VECTOR = np.random.default_rng(7).standard_normal(384, dtype=np.float32)
VECTOR /= np.linalg.norm(VECTOR)

#: Jobs taken at a time.
MAX_JOBS = 64


def main() -> None:
    """Answers until told to stop."""
    settings, stopping = Settings.from_environment(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    queue = Queue.connect(settings.redis_url, settings.keys)
    queue.join()
    heartbeat = Heartbeat(Pool(queue.redis, queue.keys), "answering", lambda: {"state": "ready", "counters": {}})
    heartbeat.start()
    while not stopping.is_set():
        with suppress(ShoalError):  # the Redis of a benchmark that ends goes first
            queue.reply([answer(delivery) for delivery in queue.take("answering", LANES, MAX_JOBS, block_s=1.0)])
    heartbeat.stop()
    queue.close()


def answer(delivery: Delivery) -> Answer:
    """The reply to a job."""
    job = Job.unpack(delivery.data)
    num_texts = len(job.texts)
    reply = Reply(
        job.id,
        vectors=np.tile(VECTOR, (num_texts, 1)),
        tokens=[11] * num_texts,
        truncated=[False] * num_texts,
        timings=dict.fromkeys(TIMINGS, 0.001234),
        model="answering",
    )
    return Answer(delivery, reply, job.reply_to)


if __name__ == "__main__":
    main()
