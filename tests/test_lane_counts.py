"""The counts of a lane are those of the jobs in it, and clients share its overflow, whatever is done in which order."""

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st
from queues import Queue

from shoal import operations
from shoal.jobs import Job
from shoal.operations import Embed
from shoal.queue.answer import Answer
from shoal.queue.consumer import GROUP
from shoal.queue.dead_letters import DeadLetter
from shoal.queue.delivery import Delivery
from shoal.queue.lane import Source
from shoal.queue.packed_jobs import PackedJobs, StreamEntry
from shoal.replies import Reply

LANE = "bulk"
CLIENTS = ("a", "b", "")

#: Numbers of texts: jobs for the front and for the overflow.
SIZES = st.sampled_from([1, 2, 31, 33, 70])

numbers = count()


class Jobs:
    """The jobs of one lane, with what may be done to them. The argument of an action chooses what it is done to."""

    def __init__(self, queue: Queue):
        self.queue = queue
        self.put_jobs: list[tuple[str, Job]] = []
        self.places: list[StreamEntry] = []
        self.taken: list[Delivery] = []

    def put(self, sizes: Sequence[int]) -> None:
        """Put jobs of so many texts, submitted ones and ones of a caller by turns."""
        address = "me" if next(numbers) % 2 else None
        jobs = [Embed(["storm"] * size) for size in sizes]
        client = CLIENTS[sum(sizes) % len(CLIENTS)]
        (places,) = self.queue.put_many([PackedJobs.pack(LANE, jobs, address, client)])
        assert isinstance(places, list)
        self.put_jobs += [(client, job) for job in jobs if not address]
        self.places += [place for place in places if place]

    def put_again(self, number: int) -> None:
        """Put a submitted job a second time."""
        client, job = self.put_jobs[number % len(self.put_jobs)]
        if self.queue.redis.hget(self.queue.keys.record(job.id), "status") in (b"queued", b"running"):
            assert self.queue.put_many([PackedJobs.pack(LANE, [job], client=client)]) == [[None]]

    def take(self, number: int) -> None:
        """Take jobs from the front, the overflow, or both."""
        room = {Source(LANE, is_overflow): 40 for is_overflow in (False, True) if number % 3 != int(is_overflow)}
        self.taken += self.queue.consumer("w").take(room)

    def reply(self, number: int) -> None:
        """Answer a job that was taken, some for the second time, some with a dead letter."""
        delivery = self.taken[number % len(self.taken)]
        job = operations.unpack(delivery.data)
        letter = DeadLetter("poisoned: why") if number % 5 == 0 else None
        self.queue.reply([Answer(delivery, Reply(job.id), job.reply_to, letter)])

    def cancel(self, number: int) -> None:
        """Cancel a submitted job, wherever it is by now."""
        self.queue.cancel(self.put_jobs[number % len(self.put_jobs)][1].id)

    def withdraw(self, number: int) -> None:
        """Withdraw a job, wherever it is by now."""
        self.queue.withdraw([self.places[number % len(self.places)]])

    def act(self, action: str, argument: Any) -> None:
        """Do it, unless there is nothing to do it to."""
        needed: dict[str, list[Any]] = {"put_again": self.put_jobs, "cancel": self.put_jobs}
        needed |= {"reply": self.taken, "withdraw": self.places}
        if needed.get(action, [True]):
            getattr(self, action)(argument)

    def check(self) -> None:
        """Fail unless Redis counts what is in the lane, and nothing waits in the overflow without need."""
        redis, keys = self.queue.redis, self.queue.keys
        front, overflow = redis.xrange(keys.lane(LANE)), redis.xrange(keys.overflow(LANE))
        places = {
            job_id: msgpack.unpackb(place, raw=True) for job_id, place in redis.hgetall(keys.places(LANE)).items()
        }
        waiting = {job_id for job_id, place in places.items() if b"job" in place}
        expected: Counter[bytes] = Counter()
        for texts, data in [
            *((int(fields[b"texts"]), fields[b"job"]) for _, fields in (*front, *overflow)),
            *((places[job_id][b"texts"], places[job_id][b"job"]) for job_id in waiting),
        ]:
            expected += Counter({b"texts": texts, b"bytes": len(data)})
        for _, fields in front:
            client = fields[b"client"]
            expected += Counter({b"client:" + client: int(fields[b"texts"])})
            expected += Counter({b"client bytes:" + client: len(fields[b"job"])})
        assert {name: int(held) for name, held in redis.hgetall(keys.load(LANE)).items()} == expected
        assert set(redis.zrange(keys.waiting(LANE), 0, -1)) == waiting
        assert places.keys() - waiting == {fields[b"id"] for _, fields in overflow}
        assert not redis.exists(keys.tags(LANE)) or waiting
        (group,) = redis.xinfo_groups(keys.overflow(LANE))
        unread = redis.xrange(keys.overflow(LANE), b"(" + group["last-delivered-id"])
        assert len(unread) == bool(unread or waiting)


ACTIONS = st.one_of(
    st.tuples(st.just("put"), st.lists(SIZES, min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["put_again", "take", "reply", "cancel", "withdraw"]), st.integers(0, 99)),
)


@settings(max_examples=60)
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
    keys = queue.keys
    assert not queue.redis.exists(keys.load(LANE), keys.waiting(LANE), keys.places(LANE), keys.tags(LANE))
    assert queue.redis.xpending(keys.lane(LANE), GROUP)["pending"] == 0


def take_one(queue: Queue) -> tuple[str, int] | None:
    """Take a job from the overflow and end it; return its client, which is in its text, and its number of texts."""
    for delivery in queue.consumer("w").take({Source(LANE, True): 1}):
        queue.drop([delivery])
        job = operations.unpack(delivery.data)
        return job.texts[0], len(job.texts)
    return None


def long_jobs(client: str, sizes: Sequence[int]) -> PackedJobs:
    """Return jobs for the overflow, with the client as their text."""
    jobs = [Embed([client] * size, reply_to="me") for size in sizes]
    return PackedJobs.pack(LANE, jobs, client=client)


LONG = st.lists(st.integers(33, 200), min_size=1, max_size=12)


@settings(max_examples=40)
@given(st.lists(LONG, min_size=2, max_size=4), st.integers(0, 12))
def test_clients_of_an_overflow_share_it_by_texts(queue: Queue, sizes: list[list[int]], num_before: int) -> None:
    """Of two clients that both wait, neither gets more than the other by more than one job of each.

    That is the bound of start-time fair queueing. The first client begins before the others, and owes nothing for that.
    """
    first, *others = [f"c{n}" for n in range(len(sizes))]
    queue.put_many([long_jobs(first, sizes[0])])
    served = [take_one(queue) for _ in range(min(num_before, len(sizes[0]) - 1))]
    queue.put_many([long_jobs(client, own) for client, own in zip(others, sizes[1:], strict=True)])
    left = {client: sum(own) for client, own in zip([first, *others], sizes, strict=True)}
    for client, num_texts in filter(None, served):
        left[client] -= num_texts
    got, longest = Counter[str](), {client: max(own) for client, own in zip([first, *others], sizes, strict=True)}
    take_one_first = take_one(queue)  # the one that was in the stream before the others came
    assert take_one_first is not None
    left[take_one_first[0]] -= take_one_first[1]
    waiting = {client for client, texts in left.items() if texts}
    while found := take_one(queue):
        client, num_texts = found
        got[client] += num_texts
        left[client] -= num_texts
        for one in waiting:
            assert abs(got[client] - got[one]) <= longest[client] + longest[one] or client not in waiting
        waiting -= {client for client, texts in left.items() if not texts}
    assert not any(left.values())


def test_tags_of_clients_that_wait_no_longer_are_forgotten(queue: Queue) -> None:
    queue.put_many([long_jobs("patient", [40] * 30), *(long_jobs(f"c{n}", [33]) for n in range(10))])
    served = Counter(client for client, _ in filter(None, (take_one(queue) for _ in range(25))))
    assert served["patient"] == 15
    tags = queue.redis.zrange(queue.keys.tags(LANE), 0, -1)
    assert sorted(tags) == [b"client:patient", b"virtual time"]
