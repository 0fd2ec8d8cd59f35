"""The states of a job (docs/architecture.md), on a real Redis, with connections that break at any command.

A model says which jobs are unanswered and which jobs a lane holds; after each step, Redis must agree.
"""

import secrets
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import redis
from breaking import Plan, connect
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from queues import Queue, set_limits

import shoal.queue.consumer
import shoal.queue.producer
from shoal import operations
from shoal.broker.broker import Script
from shoal.contract.jobs import LANES, Job
from shoal.contract.keys import Keys
from shoal.contract.replies import Reply
from shoal.errors import Overloaded, ShoalError, TooLarge, Unavailable
from shoal.operations import Embed
from shoal.queue.consumer import Answer, Delivery
from shoal.queue.dead_letters import DeadLetter
from shoal.queue.lane import LaneLimits, PackedJobs

#: Bytes that count for an unread result in addition to its reply.
KEYS_BYTES = 1_024

BREAKS = st.none() | st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 2))


class Jobs(RuleBasedStateMachine):
    """Producers, workers that die or fall silent, and callers that cancel or withdraw jobs."""

    redis_url = ""

    def __init__(self) -> None:
        super().__init__()
        self.keys = Keys("test", f"states-{secrets.token_hex(4)}")
        self.plan = Plan()
        self.queue = Queue(connect(self.redis_url, self.plan), self.keys)
        self.watcher = Queue.connect(self.redis_url, self.keys)
        set_limits(self.watcher, LaneLimits(max_jobs=40, max_texts=300))
        self.jobs: dict[str, Job] = {}  # accepted jobs by id
        self.clients: dict[str, tuple[str, str]] = {}  # lane and client of each job
        self.ended: Counter[str] = Counter()  # number of answers to each job
        self.withdrawn: set[str] = set()
        self.called: list[str] = []  # ids of jobs whose replies go to an address
        self.held: dict[str, list[Delivery]] = {"w0": [], "w1": []}
        self.silent: dict[str, list[Delivery]] = {}
        self.num_workers = 2

    # Steps

    def attempt(self, breaks: tuple[str, int] | None) -> suppress:
        """Return a context in which the connection may break, without an error for the caller."""
        self.plan.clear()
        if breaks:
            self.plan.breaks(*breaks)
        return suppress(Unavailable)

    @initialize()
    def begin(self) -> None:
        for lane in LANES:
            for is_submitted in (True, False):
                self.put(lane, "a", [1, 30, 60], is_submitted, None)
        self.announce()
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
            (answer,) = self.queue.put_many([put])
            if isinstance(answer, ShoalError):
                raise answer
            assert answer["is_new"] == [True] * len(jobs)
            self.jobs |= {job.id: job for job in jobs}
            if not is_submitted:
                self.called += [job.id for job in jobs]
        accepted = self.unanswered() & {job.id for job in jobs}
        assert len(accepted) in (0, len(jobs))
        self.jobs |= {job.id: job for job in jobs if accepted}  # accepted, even if the producer does not know

    @rule(data=st.data(), breaks=BREAKS)
    def put_again(self, data: st.DataObject, breaks: tuple[str, int] | None) -> None:
        submitted = self.submitted()
        if not submitted:
            return
        job = self.jobs[data.draw(st.sampled_from(submitted))]
        with self.attempt(breaks):
            (answer,) = self.queue.put_many([PackedJobs.pack(self.clients[job.id][0], [job])])
            assert isinstance(answer, Overloaded | Unavailable) or answer["is_new"] == [False]

    @rule(data=st.data(), max_jobs=st.integers(1, 5), lanes=st.sampled_from([LANES[:1], LANES]), breaks=BREAKS)
    def take(self, data: st.DataObject, max_jobs: int, lanes: tuple[str, ...], breaks: tuple[str, int] | None) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        with self.attempt(breaks):
            had = self.held_in_redis(worker)
            taken = self.queue.take(worker, lanes, max_jobs)
            assert not had & {delivery.key for delivery in taken}
            if any(delivery.deaths for delivery in taken):
                assert len(taken) == 1
            self.held[worker] += taken

    @rule(lane=st.sampled_from(LANES), is_addressed=st.booleans())
    def push(self, lane: str, is_addressed: bool) -> None:
        job: Job = Embed(["storm"])
        job = replace(job, reply_to=job.id) if is_addressed else job
        self.jobs[job.id], self.clients[job.id] = job, (lane, "")
        self.watcher.redis.rpush(self.keys.lane(lane), job.pack())

    @rule(data=st.data(), breaks=BREAKS)
    def reclaim(self, data: st.DataObject, breaks: tuple[str, int] | None) -> None:
        """A worker puts back jobs that it was given without its knowledge, and the jobs of dead workers."""
        worker = data.draw(st.sampled_from(sorted(self.held)))
        before = self.unanswered()
        with self.attempt(breaks):
            self.watcher.redis.delete(self.keys.reclaimed)
            self.queue.consumer(worker).reclaim(self.held[worker])
            assert self.held_in_redis(worker) <= {delivery.key for delivery in self.held[worker]}
        assert self.unanswered() == before

    @rule(data=st.data(), leaves=st.booleans(), breaks=BREAKS)
    def give_back(self, data: st.DataObject, leaves: bool, breaks: tuple[str, int] | None) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        given, self.held[worker] = self.held[worker], []  # after a break, `reclaim` puts back the jobs that are left
        before = self.unanswered()
        with self.attempt(breaks):
            if leaves:
                self.queue.leave(worker)
                assert not self.held_in_redis(worker)
            else:
                self.queue.consumer(worker).give_back(given)
        assert self.unanswered() == before

    @rule(data=st.data(), breaks=BREAKS)
    def drop_lost(self, data: st.DataObject, breaks: tuple[str, int] | None) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        with self.attempt(breaks):
            lost = self.queue.consumer(worker).lost(self.held[worker])
            assert not self.unanswered() & {delivery.job().id for delivery in lost}
            self.held[worker] = [delivery for delivery in self.held[worker] if delivery not in lost]

    @rule(data=st.data(), is_buried=st.booleans(), breaks=BREAKS)
    def answer(self, data: st.DataObject, is_buried: bool, breaks: tuple[str, int] | None) -> None:
        busy = [(worker, held) for worker, held in (*self.held.items(), *self.silent.items()) if held]
        if not busy:
            return
        self._answer(*data.draw(st.sampled_from(busy)), is_buried, breaks)

    def _answer(self, worker: str, held: list[Delivery], is_buried: bool, breaks: tuple[str, int] | None) -> None:
        deliveries, held[:] = list(held), []
        jobs = [delivery.job() for delivery in deliveries]
        before, ids = self.unanswered(), set[str]()
        with self.attempt(breaks):
            submitted = [(delivery, job.id) for delivery, job in zip(deliveries, jobs, strict=True) if not job.reply_to]
            started = self.queue.consumer(worker).start(submitted)
            deliveries = [self.named(delivery, job) for delivery, job in zip(deliveries, jobs, strict=True)]
            runs = {job_id: is_started for (_, job_id), is_started in zip(submitted, started, strict=True)}
            ids = {job.id for job in jobs if runs.get(job.id, True)}
            letter = DeadLetter("poisoned: why") if is_buried else None
            pairs = zip(deliveries, jobs, strict=True)
            self.queue.reply(Answer(d, Reply(j.id), j.reply_to, letter) for d, j in pairs if j.id in ids)
        gone = before - self.unanswered()
        assert not gone or gone == before & ids  # a batch is answered whole or not at all
        self.ended.update(gone)

    def named(self, delivery: Delivery, job: Job) -> Delivery:
        """Return the delivery with the id of its job, which a pushed job without an address gets at its start."""
        return delivery if delivery.put_as or job.reply_to else replace(delivery, key=job.id)

    @rule(data=st.data(), is_silent=st.booleans(), claims=st.booleans(), answers=st.booleans())
    def replace_worker(self, data: st.DataObject, is_silent: bool, claims: bool, answers: bool) -> None:
        busy = sorted(worker for worker, held in self.held.items() if held)
        if not busy:
            return
        old, new = data.draw(st.sampled_from(busy)), f"w{self.num_workers}"
        left = self.held.pop(old)
        if is_silent:  # the worker goes on with its jobs, but others count it as dead
            self.silent[old] = left
        self.num_workers += 1
        self.held[new] = []
        self.announce()
        if claims:
            self.watcher.die(old)
            self.held[new] = self.watcher.take(new, LANES, 5)
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
        if not self.called:
            return
        job_id = data.draw(st.sampled_from(self.called))
        before = self.unanswered()
        with self.attempt(breaks):
            self.queue.withdraw([job_id])
        gone = before - self.unanswered()
        assert gone <= {job_id}
        self.withdrawn |= gone

    # Invariants

    def announce(self) -> None:
        for worker in self.held:
            self.watcher.pool.announce(worker)

    def held_in_redis(self, worker: str) -> set[str]:
        return {key.decode() for key in self.watcher.redis.zrange(self.keys.held(worker), 0, -1)}

    def records(self, lane: str) -> dict[str, dict[str, bytes]]:
        keys = [key.decode() for key in self.watcher.redis.zrange(self.keys.of_lane(lane, "jobs"), 0, -1)]
        with self.watcher.redis.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.hgetall(self.keys.record(key))
            found = pipeline.execute()
        named = [{name.decode(): value for name, value in record.items()} for record in found]
        return dict(zip(keys, named, strict=True))

    def unanswered(self) -> set[str]:
        pushed = [data for lane in LANES for data in self.watcher.redis.lrange(self.keys.lane(lane), 0, -1)]
        packed = [record["job"] for lane in LANES for record in self.records(lane).values()]
        found = [operations.unpack(data).id for data in (*packed, *pushed)]
        assert len(found) == len(set(found))
        return set(found)

    def ask_of_each(self, *commands: Callable[[str], tuple[str, ...]]) -> dict[str, list[Any]]:
        """Return Redis's answers to the commands for each job."""
        with self.watcher.redis.pipeline(transaction=False) as pipeline:
            for job_id in self.jobs:
                for command in commands:
                    pipeline.execute_command(*command(job_id))
            found = iter(pipeline.execute())
        return {job_id: [next(found) for _ in commands] for job_id in self.jobs}

    def submitted(self) -> list[str]:
        found = self.ask_of_each(lambda job_id: ("HEXISTS", self.keys.record(job_id), "status"))
        return [job_id for job_id, (is_there,) in found.items() if is_there]

    def num_replies(self) -> dict[str, int]:
        """Return the number of answers to each job, at its address or its result key."""
        commands = (lambda one: ("XLEN", self.keys.replies(one)), lambda one: ("LLEN", self.keys.result(one)))
        return {job_id: sum(found) for job_id, found in self.ask_of_each(*commands).items()}

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
            found = self.watcher.redis.hgetall(self.keys.of_lane(lane, "load"))
            load = {name.decode(): int(number) for name, number in found.items()}
            wanted: Counter[str] = Counter()
            for record in self.records(lane).values():
                client = record["client"].decode()
                wanted[f"jobs:{client}"] += 1
                for name, number in (("texts", int(record["texts"])), ("bytes", len(record["job"]))):
                    wanted[name] += number
                    wanted[f"{name}:{client}"] += number
            assert load == wanted
            assert wanted["texts"] <= 300 + len(self.jobs)  # pushed jobs have no limits

    @invariant()
    def each_job_is_in_one_place_and_each_client_that_waits_in_one_ring(self) -> None:
        server = self.watcher.redis
        suspects = server.lrange(self.keys.suspects, 0, -1)
        workers = {*server.smembers(self.keys.holders), *(name.encode() for name in (*self.held, *self.silent))}
        places = [*suspects, *(key for name in workers for key in server.zrange(self.keys.held(name.decode()), 0, -1))]
        for lane in LANES:
            new, old, *of_clients = (
                server.lrange(self.keys.of_lane(lane, what), 0, -1) for what in ("new", "old", "of:a", "of:b", "of:")
            )
            rings = [client.decode() for client in (*new, *old)]
            waiting = dict(zip(("a", "b", ""), of_clients, strict=True))
            assert sorted(rings) == sorted(client for client, keys in waiting.items() if keys)
            places += [key for keys in waiting.values() for key in keys]
            if rings or server.exists(self.keys.lane(lane)):
                assert server.exists(self.keys.of_lane(lane, "wake")) or server.llen(self.keys.lane(lane))
        assert Counter(places) == Counter(key.encode() for lane in LANES for key in self.records(lane))
        for lane in LANES:
            for key, record in self.records(lane).items():
                is_held = "worker" in record and key in self.held_in_redis(record["worker"].decode())
                assert ("worker" in record) == (key.encode() not in suspects and is_held)

    @invariant()
    def results_that_are_not_read_are_counted(self) -> None:
        sizes: Counter[str] = Counter()
        for job_id in self.jobs:
            for reply in self.watcher.redis.lrange(self.keys.result(job_id), 0, -1):
                sizes[f"client:{self.clients[job_id][1]}"] += len(reply) + KEYS_BYTES
                sizes["result"] += 1
        sizes["bytes"] = sum(size for name, size in sizes.items() if name != "result")
        load = self.watcher.redis.hgetall(self.keys.unread_load)
        assert {name.decode(): int(number) for name, number in load.items()} == +sizes
        assert self.watcher.redis.zcard(self.keys.unread) == sizes["result"]

    @invariant()
    def a_record_says_how_far_its_job_is(self) -> None:
        unanswered = self.unanswered()
        status = (lambda one: ("HGET", self.keys.record(one), "status"), lambda one: ("TTL", self.keys.record(one)))
        for job_id, (word, ttl_s) in self.ask_of_each(*status).items():
            if word is not None:
                assert (word in (b"queued", b"running")) == (job_id in unanswered)
                assert (ttl_s == -1) == (job_id in unanswered)

    def teardown(self) -> None:
        self.plan.clear()
        self.held = {"last": []}
        self.watcher.die(*self.silent, *(f"w{n}" for n in range(self.num_workers)))
        while taken := self.queue.take("last", LANES, 100):
            for found in taken:
                job = found.job()
                if job.reply_to or self.queue.start("last", [found])[0]:
                    answer = Answer(self.named(found, job), Reply(job.id), job.reply_to)
                    self.ended[job.id] += self.queue.reply([answer])
        self.each_job_is_unanswered_or_was_answered_once()
        assert not any(self.queue.backlog().values())
        names = self.watcher.redis.scan_iter(f"{self.keys.root}:*")
        lasting = {name.decode() for name in names if self.watcher.redis.ttl(name) == -1}
        allowed = {self.keys.dead, self.keys.lane("pushed"), self.keys.holders, self.keys.limits, self.keys.scripts}
        allowed |= {self.keys.unread, self.keys.unread_load}
        allowed |= {self.keys.of_lane(lane, "wake") for lane in LANES}
        assert lasting <= allowed
        self.watcher.redis.delete(*allowed)
        self.queue.close()
        self.watcher.close()


@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
def test_a_job_is_answered_once_wherever_connections_break(redis_url: str) -> None:
    Jobs.redis_url = redis_url
    with redis.Redis.from_url(redis_url) as connection:
        for script in (*vars(shoal.queue.consumer).values(), *vars(shoal.queue.producer).values()):
            if isinstance(script, Script):
                connection.script_load(script.text)  # otherwise a first call may break in more round trips
    num_examples = settings().max_examples // 3  # each case has many steps
    profile = settings(max_examples=num_examples, stateful_step_count=25, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Jobs, settings=profile)
