"""The states of a job (docs/architecture.md), on a real Redis, with connections that break at any command.

A model says which jobs are unanswered and what a lane holds; after each step Redis must say the same.
"""

import secrets
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import msgpack
import pytest
import redis
from breaking import Plan, connect
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from queues import Queue

import shoal.queue.consumer
import shoal.queue.producer
from shoal import operations
from shoal.broker.broker import Broker
from shoal.broker.script import Script
from shoal.errors import Overloaded, ShoalError, TooLarge, Unavailable
from shoal.jobs import LANES, Job
from shoal.keys import Keys
from shoal.operations import Embed
from shoal.queue.answer import Answer
from shoal.queue.dead_letters import DeadLetter
from shoal.queue.delivery import Delivery
from shoal.queue.lane import LaneLimits
from shoal.queue.packed_jobs import PackedJobs, StreamEntry
from shoal.replies import Reply

#: Bytes that an unread result counts for beside those of its reply.
KEYS_BYTES = 1_024

#: Time for which the record of an unanswered job lives (docs/protocol.md).
RECORD_TTL_S = 604_800

BREAKS = st.none() | st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 2))


class Jobs(RuleBasedStateMachine):
    """Producers, workers that die and come back, and callers who change their minds."""

    redis_url = ""

    def __init__(self) -> None:
        super().__init__()
        self.keys = Keys("test", f"states-{secrets.token_hex(4)}")
        self.plan = Plan()
        bounds = LaneLimits(max_jobs=40, max_texts=300)
        self.queue = Queue(Broker(connect(self.redis_url, self.plan).connection_pool), self.keys, bounds)
        self.watcher = Queue.connect(self.redis_url, self.keys)
        self.watcher.join()
        self.jobs: dict[str, Job] = {}  # those that were accepted, by id
        self.clients: dict[str, tuple[str, str]] = {}  # lane and client of each
        self.ended: Counter[str] = Counter()  # how often each was answered
        self.withdrawn: set[str] = set()
        self.places: dict[str, StreamEntry] = {}
        self.held: dict[str, list[Delivery]] = {"w0": [], "w1": []}
        self.silent: dict[str, list[Delivery]] = {}
        self.num_workers = 2

    # What is done

    def attempt(self, breaks: tuple[str, int] | None) -> suppress:
        """A context in which the connection may break; what happened is then found out."""
        self.plan.clear()
        if breaks:
            self.plan.breaks(*breaks)
        return suppress(Unavailable)

    @initialize()
    def begin(self) -> None:
        for lane in LANES:
            for is_submitted in (True, False):
                self.put(lane, "a", [1, 30, 60], is_submitted, None)
        for worker, held in self.held.items():
            held += self.queue.take(worker, LANES, 2)

    @rule(
        lane=st.sampled_from(LANES),
        client=st.sampled_from(["a", "b", ""]),
        sizes=st.lists(st.integers(1, 80), min_size=1, max_size=4),
        is_submitted=st.booleans(),
        breaks=BREAKS,
    )
    def put(self, lane: str, client: str, sizes: list[int], is_submitted: bool, breaks: tuple[str, int] | None) -> None:
        jobs = [Embed(["storm"] * size) for size in sizes]
        if not is_submitted:
            jobs = [replace(job, reply_to=job.id) for job in jobs]
        put = PackedJobs.pack(lane, jobs, client=client)
        self.clients |= dict.fromkeys((job.id for job in jobs), (lane, client))
        with self.attempt(breaks), suppress(Overloaded, TooLarge):
            (places,) = self.queue.put_many([put])
            if isinstance(places, ShoalError):
                raise places
            self.jobs |= {job.id: job for job in jobs}
            if not is_submitted:
                self.places |= {job.id: place for job, place in zip(jobs, places, strict=True) if place}
        accepted = self.unanswered() & {job.id for job in jobs}
        assert len(accepted) in (0, len(jobs))
        self.jobs |= {job.id: job for job in jobs if accepted}  # whether the producer knows it or not

    @rule(data=st.data(), breaks=BREAKS)
    def put_again(self, data: st.DataObject, breaks: tuple[str, int] | None) -> None:
        submitted = self.submitted()
        if not submitted:
            return
        job = self.jobs[data.draw(st.sampled_from(submitted))]
        with self.attempt(breaks), suppress(Overloaded):
            assert self.queue.put_many([PackedJobs.pack(self.clients[job.id][0], [job])])[0] == [None]

    @rule(data=st.data(), max_jobs=st.integers(1, 5), lanes=st.sampled_from([LANES[:1], LANES]), breaks=BREAKS)
    def take(self, data: st.DataObject, max_jobs: int, lanes: tuple[str, ...], breaks: tuple[str, int] | None) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        with self.attempt(breaks):
            self.held[worker] += self.queue.take(worker, lanes, max_jobs)

    @rule(data=st.data(), breaks=BREAKS)
    def claim(self, data: st.DataObject, breaks: tuple[str, int] | None) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[worker]
        with self.attempt(breaks):
            if delivery := self.queue.claim(worker, set(self.held), held):
                assert delivery.entry not in [one.entry for one in held if one.source == delivery.source]
                held.append(delivery)

    @rule(data=st.data(), breaks=BREAKS)
    def hand_back(self, data: st.DataObject, breaks: tuple[str, int] | None) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        given, self.held[worker] = self.held[worker], []  # after a break, a worker claims those that are still its own
        before = self.unanswered()
        with self.attempt(breaks):
            self.queue.consumer(worker).hand_back(given)
        assert self.unanswered() == before

    @rule(data=st.data(), breaks=BREAKS)
    def drop_lost(self, data: st.DataObject, breaks: tuple[str, int] | None) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        with self.attempt(breaks):
            lost = self.queue.consumer(worker).lost(self.held[worker])
            assert not self.unanswered() & {operations.unpack(delivery.data).id for delivery in lost}
            self.held[worker] = [delivery for delivery in self.held[worker] if delivery not in lost]

    @rule(data=st.data(), is_buried=st.booleans(), breaks=BREAKS)
    def answer(self, data: st.DataObject, is_buried: bool, breaks: tuple[str, int] | None) -> None:
        busy = [(worker, held) for worker, held in (*self.held.items(), *self.silent.items()) if held]
        if not busy:
            return
        self._answer(*data.draw(st.sampled_from(busy)), is_buried, breaks)

    def _answer(self, worker: str, held: list[Delivery], is_buried: bool, breaks: tuple[str, int] | None) -> None:
        deliveries, held[:] = list(held), []
        jobs = [operations.unpack(delivery.data) for delivery in deliveries]
        before, ids = self.unanswered(), set[str]()
        with self.attempt(breaks):
            submitted = [(delivery, job.id) for delivery, job in zip(deliveries, jobs, strict=True) if not job.reply_to]
            started = self.queue.consumer(worker).start(submitted)
            runs = {job_id: is_started for (_, job_id), is_started in zip(submitted, started, strict=True)}
            ids = {job.id for job in jobs if runs.get(job.id, True)}
            letter = DeadLetter("poisoned: why") if is_buried else None
            pairs = zip(deliveries, jobs, strict=True)
            self.queue.reply(Answer(d, Reply(j.id), j.reply_to, letter) for d, j in pairs if j.id in ids)
        gone = before - self.unanswered()
        assert not gone or gone == before & ids  # a batch is answered whole or not at all
        self.ended.update(gone)

    @rule(data=st.data(), is_silent=st.booleans(), claims=st.booleans(), answers=st.booleans())
    def replace_worker(self, data: st.DataObject, is_silent: bool, claims: bool, answers: bool) -> None:
        busy = sorted(worker for worker, held in self.held.items() if held)
        if not busy:
            return
        old, new = data.draw(st.sampled_from(busy)), f"w{self.num_workers}"
        left = self.held.pop(old)
        if is_silent:  # and goes on with what it has, while others think that it is dead
            self.silent[old] = left
        self.num_workers += 1
        alive = {*self.held, new}
        self.held[new] = [found for _ in left if claims and (found := self.watcher.claim(new, alive))]
        if answers:
            self._answer(new, self.held[new], False, None)

    @rule(data=st.data(), breaks=BREAKS)
    def cancel(self, data: st.DataObject, breaks: tuple[str, int] | None) -> None:
        submitted = self.submitted()
        if not submitted:
            return
        job_id = data.draw(st.sampled_from(submitted))
        before = self.unanswered()
        status = self.watcher.status(job_id)[0]
        with self.attempt(breaks):
            assert self.queue.cancel(job_id) == ("cancelled" if status in ("queued", "running") else status)
        gone = before - self.unanswered()
        assert gone <= ({job_id} if status in ("queued", "running") else set())
        self.ended.update(gone)

    @rule(data=st.data(), breaks=BREAKS)
    def withdraw(self, data: st.DataObject, breaks: tuple[str, int] | None) -> None:
        if not self.places:
            return
        job_id = data.draw(st.sampled_from(list(self.places)))
        before, place = self.unanswered(), self.places[job_id]
        with self.attempt(breaks):
            self.queue.withdraw([place])
        gone = before - self.unanswered()
        assert gone <= {job_id}
        self.withdrawn |= gone

    # What must hold

    def unanswered(self) -> set[str]:
        """Ids of the jobs in the lanes, each of them once."""
        found = [
            operations.unpack(data).id for lane in LANES for data in (*self.at_front(lane), *self.in_overflow(lane))
        ]
        assert len(found) == len(set(found))
        return set(found)

    def submitted(self) -> list[str]:
        """Ids of the jobs that have a record."""
        with self.watcher.redis.pipeline(transaction=False) as pipeline:
            for job_id in self.jobs:
                pipeline.exists(self.keys.record(job_id))
            found = pipeline.execute()
        return [job_id for job_id, is_there in zip(self.jobs, found, strict=True) if is_there]

    def at_front(self, lane: str) -> list[bytes]:
        """Bytes of the jobs at the front of the lane."""
        return [fields[b"job"] for _, fields in self.watcher.redis.xrange(self.keys.lane(lane))]

    def in_overflow(self, lane: str) -> list[bytes]:
        """Bytes of the jobs in the overflow of the lane, those that wait for their turn included."""
        server, stream = self.watcher.redis, self.keys.overflow(lane)
        entries = server.xrange(stream)
        waiting = set(server.zrange(self.keys.waiting(lane), 0, -1))
        places = {
            job_id: msgpack.unpackb(packed, raw=True)
            for job_id, packed in server.hgetall(self.keys.places(lane)).items()
        }
        promoted = {job_id: place[b"entry"] for job_id, place in places.items() if job_id not in waiting}
        assert promoted == {fields[b"id"]: entry for entry, fields in entries}
        assert waiting <= places.keys()
        if waiting:
            last = next(group["last-delivered-id"] for group in server.xinfo_groups(stream))
            assert server.xrange(stream, b"(" + last), "jobs wait, and no worker would be woken"
        else:
            assert not server.exists(self.keys.tags(lane))
        return [fields[b"job"] for _, fields in entries] + [places[job_id][b"job"] for job_id in waiting]

    def num_replies(self) -> dict[str, int]:
        """Return the number of answers that each job has, at its address or its result key."""
        with self.watcher.redis.pipeline(transaction=False) as pipeline:
            for job_id in self.jobs:
                pipeline.xlen(self.keys.replies(job_id)).llen(self.keys.result(job_id))
            found = iter(pipeline.execute())
        return {job_id: next(found) + next(found) for job_id in self.jobs}

    @invariant()
    def each_job_is_unanswered_or_was_answered_once(self) -> None:
        unanswered, num_replies = self.unanswered(), self.num_replies()
        assert unanswered <= self.jobs.keys()
        for job_id in self.jobs:
            assert (job_id in unanswered) + num_replies[job_id] + (job_id in self.withdrawn) == 1
            assert self.ended[job_id] == num_replies[job_id]

    @invariant()
    def a_lane_holds_what_is_unanswered(self) -> None:
        for lane in LANES:
            load = {name.decode(): int(n) for name, n in self.watcher.redis.hgetall(self.keys.load(lane)).items()}
            wanted: Counter[str] = Counter()
            front = self.at_front(lane)
            for data in (*front, *self.in_overflow(lane)):
                job = operations.unpack(data)
                wanted["texts"] += len(job.texts)
                wanted["bytes"] += len(data)
                if data in front:
                    wanted[f"client:{self.clients[job.id][1]}"] += len(job.texts)
                    wanted[f"client bytes:{self.clients[job.id][1]}"] += len(data)
            assert load == wanted
            assert wanted["texts"] <= 300

    @invariant()
    def results_that_are_not_read_are_counted(self) -> None:
        sizes: Counter[str] = Counter()
        for job_id in self.jobs:
            for reply in self.watcher.redis.lrange(self.keys.result(job_id), 0, -1):
                sizes[f"client:{self.clients[job_id][1]}"] += len(reply) + KEYS_BYTES
                sizes["results"] += 1
        sizes["bytes"] = sum(size for name, size in sizes.items() if name != "results")
        load = self.watcher.redis.hgetall(self.keys.unread_load)
        assert {name.decode(): int(number) for name, number in load.items()} == +sizes
        assert self.watcher.redis.zcard(self.keys.unread) == sizes["results"]

    @invariant()
    def a_record_says_how_far_its_job_is(self) -> None:
        unanswered = self.unanswered()
        with self.watcher.redis.pipeline(transaction=False) as pipeline:
            for job_id in self.jobs:
                pipeline.hget(self.keys.record(job_id), "status").ttl(self.keys.record(job_id))
            found = iter(pipeline.execute())
        for job_id in self.jobs:
            status, ttl_s = next(found), next(found)
            if status is not None:
                assert (status in (b"queued", b"running")) == (job_id in unanswered)
                assert (ttl_s > RECORD_TTL_S - 3_600) == (job_id in unanswered)

    def teardown(self) -> None:
        """One worker that lives answers all that is left."""
        self.plan.clear()
        self.held = {"last": []}
        while (delivery := self.queue.claim("last", {"last"})) or (taken := self.queue.take("last", LANES, 100)):
            for found in [delivery] if delivery else taken:
                job = operations.unpack(found.data)
                if job.reply_to or self.queue.start("last", [found])[0]:
                    self.ended[job.id] += self.queue.reply([Answer(found, Reply(job.id), job.reply_to)])
                else:
                    self.queue.drop([found])
        self.each_job_is_unanswered_or_was_answered_once()
        assert not any(self.queue.backlog().values())
        lasting = [name for name in self.watcher.redis.scan_iter(f"{self.keys.root}:*") if self._is_lasting(name)]
        allowed = {s.encode() for lane in LANES for s in (self.keys.lane(lane), self.keys.overflow(lane))}
        assert set(lasting) <= allowed | {self.keys.dead.encode()}
        self.watcher.redis.delete(*allowed, self.keys.dead)
        self.queue.close()
        self.watcher.close()

    def _is_lasting(self, name: bytes) -> bool:
        return bool(self.watcher.redis.ttl(name) == -1)


@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
def test_a_job_is_answered_once_wherever_connections_break(redis_url: str) -> None:
    Jobs.redis_url = redis_url
    with redis.Redis.from_url(redis_url) as connection:
        for script in (*vars(shoal.queue.consumer).values(), *vars(shoal.queue.producer).values()):
            if isinstance(script, Script):
                connection.script_load(script.text)  # else who comes first has more round trips, in which to break
    profile = settings(max_examples=40, stateful_step_count=25, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Jobs, settings=profile)


def test_a_connection_breaks_where_it_is_told_to(redis_url: str) -> None:
    plan = Plan()
    client = connect(redis_url, plan)
    client.delete("test:breaking")
    for when, expected in (("before", 0), ("after", 1)):
        plan.breaks(when, 1)
        with pytest.raises(redis.ConnectionError, match=when):
            client.incr("test:breaking")
        assert int(client.get("test:breaking") or 0) == expected
    client.delete("test:breaking")
    client.close()
