"""Workers that die at any point of a step, of a harmful job or by accident. Only harmful jobs become poisoned."""

import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest
from blocking import Pool
from breaking import Plan, connect
from queues import Queue

import shoal.queue.consumer
import shoal_workers.loop.admission
import shoal_workers.loop.scheduler
from shoal import operations
from shoal.contract.jobs import LANES, Job
from shoal.contract.options import Options
from shoal.errors import Unavailable
from shoal.operations import Embed
from shoal.queue.consumer import Consumer
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder, EncodingPass, TokenizedText
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.loop.admission import MAX_DEATHS, Limits
from shoal_workers.loop.worker import Worker

NUM_JOBS, NUM_WORKERS = 80, 3

#: Share of the steps in which the worker dies by accident, and of the steps in which its connection breaks.
SHARE_DEATHS, SHARE_BREAKS = 0.2, 0.1

#: The step at which a worker dies of a harmful job, by the job's number.
HARM = {13: "read", 27: "tokenize", 41: "encode", 65: "encode"}


class Died(BaseException):
    """The end of a worker."""


class MortalEncoder(Encoder):
    """The real encoder, except that it dies of harmful jobs. Prompts and texts contain the jobs' numbers."""

    def __init__(self, encoder: Encoder):
        super().__init__(encoder.model, encoder.tokenizer, encoder.engine)
        self._numbers: dict[Sequence[int], int] = {}

    def check(self, options: Options, outputs: Sequence[str] = ()) -> None:
        self._reach("read", int(options.prompt_name or ""))

    def prompt(self, options: Options, fallbacks: tuple[str, ...] = ()) -> str:
        return ""

    def tokenize(self, texts: Sequence[str], truncation_side: str = "right", is_query: bool = False) -> list[Tokens]:
        found = super().tokenize(texts, truncation_side, is_query)
        for text, tokens in zip(texts, found, strict=True):
            self._numbers[tokens.ids] = text.count("rain") + 9 * text.count("storm")
            self._reach("tokenize", self._numbers[tokens.ids])
        return found

    def start(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        self._reach("encode", *(self._numbers[text.tokens.ids] for text in texts))
        return super().start(texts)

    def start_aside(self, texts: Sequence[TokenizedText]) -> list[EncodingPass]:
        self._reach("encode", *(self._numbers[text.tokens.ids] for text in texts))
        return super().start_aside(texts)

    def _reach(self, what: str, *numbers: int) -> None:
        if harmful := [number for number in numbers if HARM.get(number) == what]:
            raise Died(harmful[0])


class MortalWorkers:
    """Workers that die now and then, and are replaced by others."""

    def __init__(self, queue: Queue, redis_url: str, encoder: Encoder, random: Random):
        self.queue, self.redis_url, self.random = queue, redis_url, random
        self.encoder = MortalEncoder(encoder)
        self.pool = Pool(queue.broker, queue.keys, alive_s=3_600.0)
        self.plans: dict[Worker, Plan] = {}
        self.numbers = itertools.count()
        self.harmed: Counter[int] = Counter()  # number of workers that died of each job
        self.suspects: set[int] = set()  # jobs that a worker had when it died
        self.accidents: Counter[int] = Counter()  # number of workers that had each job when they died by accident

    def step(self) -> None:
        """Let one worker make a step, in which it may die or lose its connection at any round trip."""
        while len(self.plans) < NUM_WORKERS:
            self._start()
        worker, plan = self.random.choice(list(self.plans.items()))
        share = self.random.random()
        if share < SHARE_DEATHS + SHARE_BREAKS:
            plan.breaks(self.random.choice(("before", "after")), self.random.randint(1, 15))
            if share < SHARE_DEATHS:
                plan.error = Died
        try:
            with suppress(Unavailable):
                worker.step(block_s=0)
        except Died as death:
            self._bury(worker, death)
        plan.clear()

    def _start(self) -> None:
        plan = Plan()
        broker = connect(self.redis_url, plan)
        consumer = Consumer(broker, self.queue.keys, f"w{next(self.numbers)}")
        worker = Worker(consumer, self.encoder, {}, Bucketing(40), Limits(64))
        self.pool.announce(worker.id, {})
        self.plans[worker] = plan

    def _bury(self, worker: Worker, death: Died) -> None:
        held = self._held(worker)
        blamed = self.suspects & held or held  # the suspect ran alone
        if death.args[0] in HARM:
            self.harmed[death.args[0]] += 1
            assert death.args[0] in blamed, "a suspect was not alone"
        assert len(self.suspects & held) <= 1
        self.accidents.update(blamed - {death.args[0]})
        self.suspects |= blamed
        self.pool.leave(worker.id)
        worker.consumer.broker.close()
        del self.plans[worker]

    def _held(self, worker: Worker) -> set[int]:
        redis, keys = self.queue.redis, self.queue.keys
        held = [redis.hget(keys.record(key.decode()), "job") for key in redis.zrange(keys.held(worker.id), 0, -1)]
        return {int(operations.unpack(data).options.prompt_name or "") for data in held}

    def close(self) -> None:
        for worker in self.plans:
            self.pool.leave(worker.id)
            worker.consumer.broker.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers look for jobs of dead workers in each step, and compute long and bulk jobs in many passes."""
    monkeypatch.setattr(shoal_workers.loop.scheduler, "EXPECTED_S", 3_600.0)
    monkeypatch.setattr(shoal_workers.loop.admission, "RECLAIM_EVERY_S", 0.0)
    monkeypatch.setattr(shoal.queue.consumer, "RECLAIM_TURN_S", 0.001)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.usefixtures("impatient")
def test_only_harmful_jobs_become_poisoned(
    queue: Queue, redis_url: str, encoder: Encoder, encoder_of_two_threads: Encoder, seed: int
) -> None:
    random = Random(f"blame {seed}")
    jobs: list[Job] = []
    workers = MortalWorkers(queue, redis_url, encoder_of_two_threads if seed % 2 else encoder, random)
    steps = itertools.count()
    while len(jobs) < NUM_JOBS or any(queue.backlog().values()):
        if len(jobs) < NUM_JOBS and random.random() < 0.6:
            rains, storms = "rain " * (len(jobs) % 9), "storm " * (len(jobs) // 9)  # the job's number
            texts = [f"{rains}{storms}{'europe ' * n}" for n in range(1, random.choice((2, 2, 8)))]
            jobs.append(Embed(texts, Options(prompt_name=str(len(jobs))), reply_to="me"))
            queue.put(random.choice(LANES), jobs[-1:])
        workers.step()
        assert next(steps) < 2_000  # a longer run would never end
    workers.close()
    found = {reply.id: reply.error and reply.error.code for reply in queue.inbox("me").wait()}
    poisoned = {number for number, job in enumerate(jobs) if found[job.id] == "poisoned"}
    others = [found[job.id] for number, job in enumerate(jobs) if number not in poisoned]
    assert HARM.keys() <= poisoned
    assert others == [None] * len(others)
    assert max(workers.harmed.values()) <= MAX_DEATHS
    # The first death may be due to a neighbour. Afterwards, each job was alone with the workers that died.
    assert all(workers.accidents[number] >= MAX_DEATHS for number in poisoned - HARM.keys())
