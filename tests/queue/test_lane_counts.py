"""The counts of a lane are those of the jobs in it, whatever is done in which order."""

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from queues import Queue

from shoal.contract.jobs import Job
from shoal.contract.replies import Reply
from shoal.operations import Embed
from shoal.queue.answer import Answer
from shoal.queue.blame import DeadLetter
from shoal.queue.delivery import Delivery
from shoal.queue.packed_jobs import PackedJobs

LANE = "bulk"
CLIENTS = ("a", "b", "")

#: Numbers of texts.
SIZES = st.sampled_from([1, 2, 31, 33, 70])

numbers = count()


class Jobs:
    """The jobs of one lane, with what may be done to them. The argument of an action chooses what it is done to."""

    def __init__(self, queue: Queue):
        self.queue = queue
        self.put_jobs: list[tuple[str, Job]] = []
        self.put_ids: list[str] = []
        self.taken: list[Delivery] = []

    def put(self, sizes: Sequence[int]) -> None:
        """Put jobs of so many texts, submitted ones and ones of a caller by turns."""
        address = "me" if next(numbers) % 2 else None
        jobs = [Embed(["storm"] * size) for size in sizes]
        client = CLIENTS[sum(sizes) % len(CLIENTS)]
        (put_ids,) = self.queue.put_many([PackedJobs.pack(LANE, jobs, address, client)])
        assert isinstance(put_ids, list)
        self.put_jobs += [(client, job) for job in jobs if not address]
        self.put_ids += [put_id for put_id in put_ids if put_id]

    def put_again(self, number: int) -> None:
        """Put a submitted job a second time."""
        client, job = self.put_jobs[number % len(self.put_jobs)]
        if self.queue.redis.hget(self.queue.keys.record(job.id), "status") in (b"queued", b"running"):
            assert self.queue.put_many([PackedJobs.pack(LANE, [job], client=client)]) == [[None]]

    def take(self, number: int) -> None:
        """Take jobs for some texts."""
        self.taken += self.queue.consumer("w").take({LANE: number})

    def reply(self, number: int) -> None:
        """Answer a job that was taken, some for the second time, some with a dead letter."""
        delivery = self.taken[number % len(self.taken)]
        job = delivery.job()
        letter = DeadLetter("poisoned: why") if number % 5 == 0 else None
        self.queue.reply([Answer(delivery, Reply(job.id), job.reply_to, letter)])

    def cancel(self, number: int) -> None:
        """Cancel a submitted job, wherever it is by now."""
        self.queue.cancel(self.put_jobs[number % len(self.put_jobs)][1].id)

    def withdraw(self, number: int) -> None:
        """Withdraw a job, wherever it is by now."""
        self.queue.withdraw([self.put_ids[number % len(self.put_ids)]])

    def act(self, action: str, argument: Any) -> None:
        """Do it, unless there is nothing to do it to."""
        needed: dict[str, list[Any]] = {"put_again": self.put_jobs, "cancel": self.put_jobs}
        needed |= {"reply": self.taken, "withdraw": self.put_ids}
        if needed.get(action, [True]):
            getattr(self, action)(argument)

    def check(self) -> None:
        """Fail unless Redis counts what is in the lane."""
        redis, keys = self.queue.redis, self.queue.keys
        expected: Counter[bytes] = Counter()
        for key in redis.zrange(keys.of_lane(LANE, "jobs"), 0, -1):
            texts, data, client = redis.hmget(keys.record(key.decode()), "texts", "job", "client")
            expected += Counter({b"jobs:" + client: 1})
            for name, number in ((b"texts", int(texts)), (b"bytes", len(data))):
                expected += Counter({name: number, name + b":" + client: number})
        assert {name: int(held) for name, held in redis.hgetall(keys.of_lane(LANE, "load")).items()} == expected


ACTIONS = st.one_of(
    st.tuples(st.just("put"), st.lists(SIZES, min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["put_again", "take", "reply", "cancel", "withdraw"]), st.integers(0, 99)),
)


@given(st.lists(SIZES, min_size=3, max_size=6), st.lists(ACTIONS, max_size=25))
def test_the_counts_are_those_of_what_is_in_the_lane(
    queue: Queue, sizes: list[int], actions: list[tuple[str, Any]]
) -> None:
    jobs = Jobs(queue)
    for action, argument in [("put", sizes), *actions]:
        jobs.act(action, argument)
        jobs.check()
    jobs.taken += queue.take("w", [LANE], 10_000)
    for number in range(len(jobs.taken)):
        jobs.reply(number)
    jobs.check()
    left = {name.decode() for name in queue.redis.scan_iter(queue.keys.of_lane(LANE, "*"))}
    assert left <= {queue.keys.of_lane(LANE, "wake")}
    assert not queue.redis.exists(queue.keys.held("w"))
