"""`shoal host`: several models on one machine run while jobs come for them, within a budget of memory."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
from click.testing import CliRunner
from conftest import PATIENCE_S, RedisServer, wait_until

from shoal import Client
from shoal.broker.broker import Broker
from shoal.contract.jobs import LANES
from shoal.contract.keys import Keys
from shoal.errors import BadSetting, NotReady
from shoal.operations import Embed
from shoal.queue.pool import Pool
from shoal.settings import Settings
from shoal.supervisor.process import Service
from shoal_workers.cli import host as host_command
from shoal_workers.service.model_host import (
    MAX_START_ALONE_S,
    TURN_S,
    HostedModel,
    ModelHost,
    settings_of_models,
)

#: More memory than any model takes, and longer than any test.
PLENTY, NEVER_S = 2**50, 1e9


@pytest.fixture
def settings(redis_url: str, keys: Keys, home: Path) -> Settings:
    settings = Settings(redis_url=redis_url, key_prefix=keys.pool, pool="a", home=str(home), cache_mb=0)
    return replace(settings, precision="f32", threads=1)


@pytest.fixture
def broker(redis_url: str) -> Iterator[Broker]:
    with closing(Broker.connect(redis_url)) as broker:
        yield broker


@contextmanager
def running(host: ModelHost) -> Iterator[None]:
    """Run the host in a thread until its models are known, and stop it at the end."""
    stopping, known = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(host.run, stopping, known.set)
        wait_until(lambda: known.is_set() or ended.done())
        try:
            if known.is_set():
                yield
        finally:
            stopping.set()
            ended.result()


def host_of(settings: Settings, broker: Broker, model: Path, budget_bytes: int = PLENTY) -> ModelHost:
    """Return a host of the model in two pools, a and b."""
    both = settings_of_models(settings, [f"a={model}", f"b={model}"])
    return ModelHost([HostedModel(broker, each) for each in both], budget_bytes, NEVER_S)


def states(host: ModelHost) -> list[str]:
    return [model.state for model in host.models]


def ready_states(host: ModelHost, broker: Broker, prefix: str) -> list[list[str]]:
    """Return the states of the workers of each pool that clients take for ready."""
    found = [Pool(broker, Keys(prefix, model.name)).ready() for model in host.models]
    return [[about["state"] for about in workers.values()] for workers in found]


def embed(settings: Settings, pool: str) -> int:
    with Client(settings.redis_url, key_prefix=settings.key_prefix, pool=pool, timeout_s=PATIENCE_S) as client:
        return len(client.embed(["storm"]))


def test_models_take_turns_and_sleep(settings: Settings, broker: Broker, tiny_model: Path, tiny_source: Path) -> None:
    host = host_of(settings, broker, tiny_source)
    with running(host):
        assert states(host) == ["ready", "ready"]
        host.budget_bytes = int(1.5 * max(model.memory_bytes for model in host.models))
        wait_until(lambda: sorted(states(host)) == ["asleep", "ready"])
        for pool in ("a", "b", "a"):
            assert embed(settings, pool) == 1
            wait_until(lambda: sorted(states(host)) == ["asleep", "ready"])
            assert [model.name for model in host.models if model.state == "ready"] == [pool]
            # Clients see the model and the indexes of the sleeping worker.
            assert sorted(state for (state,) in ready_states(host, broker, settings.key_prefix)) == ["asleep", "ready"]
        host.idle_s = 0
        wait_until(lambda: states(host) == ["asleep", "asleep"])
        host.idle_s = NEVER_S
        assert embed(settings, "b") == 1
        wait_until(lambda: states(host) == ["asleep", "ready"])
        # After its end, a worker that is killed is announced as asleep, and the next job starts it.
        (about,) = Pool(broker, Keys(settings.key_prefix, "b")).ready().values()
        os.kill(about["pid"], signal.SIGKILL)
        wait_until(lambda: ready_states(host, broker, settings.key_prefix) == [["asleep"], ["asleep"]])
        assert states(host) == ["asleep", "asleep"]
        assert embed(settings, "b") == 1
    assert ready_states(host, broker, settings.key_prefix) == [[], []]


class PlannedModel(HostedModel):
    """A model of the pool `name` without a worker. The host's decisions change its state; the test changes the rest."""

    def __init__(self, broker: Broker, settings: Settings, name: str, **about: Any):
        super().__init__(broker, replace(settings, pool=name))
        self.is_known, self.memory_bytes = True, 10
        self.used_at = self.ready_at = self.restart_at = self.started_at = 0.0
        for field, value in about.items():
            setattr(self, field, value)

    def start(self) -> None:
        self.state = "starting"

    def send_to_sleep(self) -> None:
        self.state = "stopping"

    def look(self, now: float) -> None:
        pass


BUSY = {"state": "ready", "num_jobs": 1}

#: Steps of a host with models a, b and c and room for two: a time and the states afterwards. A word in place of the
#: time says what happened to model b.
STEPS: dict[str, tuple[list[dict[str, Any]], list[tuple[float | str, str]]]] = {
    "an idle model sleeps": (
        [{"state": "ready", "used_at": 5.0}, {"state": "ready", "used_at": 6.0}],
        [(14.9, "ready ready"), (15.0, "stopping ready")],
    ),
    "the idle model that was not used for the longest time makes room": (
        [{"state": "ready", "used_at": 2.0}, {"state": "ready", "used_at": 1.0}, {"num_jobs": 1}],
        [
            (3.0, "ready stopping asleep"),
            (3.1, "ready stopping asleep"),  # the memory of b is free soon
            ("asleep", "ready asleep asleep"),
            (3.2, "ready asleep starting"),
        ],
    ),
    "an idle model makes room before a busy one": (
        [BUSY, {"state": "ready", "used_at": 9.0}, {"num_jobs": 1}],
        [(9.0, "ready stopping asleep")],
    ),
    "a busy model makes room after its turn": (
        [BUSY | {"ready_at": 2.0}, BUSY | {"ready_at": 1.0}, {"num_jobs": 1}],
        [(1.0 + TURN_S - 0.1, "ready ready asleep"), (1.0 + TURN_S, "ready stopping asleep")],
    ),
    "models start one at a time, the one that slept longest first": (
        [{"num_jobs": 1, "ready_at": 2.0}, {"num_jobs": 1, "ready_at": 1.0}, {"ready_at": 0.0}],
        [
            (3.0, "asleep starting asleep"),
            (3.1, "asleep starting asleep"),
            ("ready", "asleep ready asleep"),
            (3.2, "starting ready asleep"),
        ],
    ),
    "a model that hangs while it starts holds up the others for a while": (
        [{"state": "starting", "started_at": 1.0}, {"num_jobs": 1}],
        [(MAX_START_ALONE_S + 0.9, "starting asleep"), (MAX_START_ALONE_S + 1.0, "starting starting")],
    ),
    "a model that has outgrown the budget runs alone": (
        [{"state": "ready", "memory_bytes": 30, "used_at": 2.0}, {"state": "ready", "used_at": 1.0}],
        [(3.0, "ready stopping"), ("asleep", "ready asleep"), (3.1, "ready asleep")],
    ),
    "a model that failed is not started before its time": (
        [{"num_jobs": 1, "restart_at": 5.0}],
        [(4.9, "asleep"), (5.0, "starting")],
    ),
}


@pytest.mark.parametrize("what", STEPS)
def test_a_step_starts_and_stops_models(broker: Broker, settings: Settings, what: str) -> None:
    models, steps = STEPS[what]
    named = zip("abc", models, strict=False)
    idle_s = 10.0 if what == "an idle model sleeps" else NEVER_S
    host = ModelHost([PlannedModel(broker, settings, name, **about) for name, about in named], 20, idle_s)
    for now, expected in steps:
        if isinstance(now, str):
            host.models[1].state = now
        else:
            host.step(now)
        assert " ".join(states(host)) == expected


class TestLook:
    @pytest.fixture
    def model(self, settings: Settings, broker: Broker) -> Iterator[HostedModel]:
        """A model whose worker is a process that the test announces."""
        model = HostedModel(broker, settings)
        model._worker = Service("the worker of a", ["sleep", "1000"], {})
        yield model
        model.stop()

    def beat(self, model: HostedModel, num_jobs: int, memory_bytes: Any) -> None:
        assert model._worker.process
        about = {"state": "ready", "host": gethostname(), "pid": model._worker.process.pid, "model": "m"}
        about |= {"counters": {"jobs": num_jobs}, "memory_bytes": memory_bytes, "texts_per_s": 9.0}
        model._pool.announce("w", about)

    @pytest.mark.parametrize("lane", LANES)
    def test_an_unanswered_job_is_use(self, model: HostedModel, settings: Settings, lane: str) -> None:
        with Client(settings.redis_url, key_prefix=settings.key_prefix, pool="a") as client:
            client.submit("embed", ["storm"], lane=lane)
        model.look(7.0)
        assert (model.num_jobs, model.used_at) == (1, 7.0)
        model._pool.broker.execute("RPUSH", model._pool.keys.lane(lane), Embed(["storm"], id="pushed").pack())
        model.look(8.0)
        assert (model.num_jobs, model.used_at) == (2, 8.0)

    def test_answered_jobs_are_use(self, model: HostedModel) -> None:
        model.start()
        model.look(1.0)
        assert model.state == "starting"
        self.beat(model, 0, None)  # the system does not tell the memory
        model.look(2.0)
        assert (model.state, model.is_known, model.used_at, model.ready_at) == ("ready", True, 2.0, 2.0)
        self.beat(model, 1, 30)
        model.look(4.0)
        self.beat(model, 1, 20)
        model.look(6.0)
        assert (model.used_at, model.ready_at, model.memory_bytes) == (4.0, 2.0, 30)

    def test_a_foreign_key_stops_no_host(self, model: HostedModel, settings: Settings, broker: Broker) -> None:
        lane = model._pool.keys.lane("bulk")
        broker.execute("RPUSH", lane, "a job")
        model.look(0.5)
        assert (model.num_jobs, model.used_at) == (1, 0.5)
        broker.pipeline(("DEL", lane), ("SET", lane, "no list"))
        host = ModelHost([model, PlannedModel(broker, settings, "b", num_jobs=1)], PLENTY, NEVER_S)
        model.start()
        self.beat(model, 0, 10)
        host.step(1.0)
        assert states(host) == ["ready", "starting"]
        # Its jobs are unknown: it neither starts for them nor goes to sleep.
        model.look(2.0)
        assert (model.num_jobs, model.used_at) == (0, 2.0)

    def test_a_sleeping_model_announces_what_it_serves_until_it_is_ready(self, model: HostedModel) -> None:
        model.start()
        self.beat(model, 5, 10)
        model.look(2.0)
        model.send_to_sleep()
        model._pool.leave("w")
        wait_until(lambda: model._worker.exit_code() is not None)
        model.look(3.0)
        assert model.state == "asleep"
        (about,) = model._pool.ready().values()
        served = {"state": "asleep", "model": "m", "host": gethostname(), "pid": os.getpid(), "texts_per_s": 0.0}
        assert about == served
        model.start()
        self.beat(model, 0, 10)
        model.look(4.0)
        assert list(model._pool.ready()) == ["w"]

    def test_a_worker_is_tried_again_after_a_pause_that_doubles_until_it_is_ready(self, model: HostedModel) -> None:
        model._worker.command, command = ["/nowhere/python"], model._worker.command
        model.start()
        assert (model.state, model.restart_at) == ("asleep", model.started_at + 1.0)
        model._worker.command = command
        model.is_known, model._served = True, {"host": "h"}
        for now, restart_at in ((10.0, 11.0), (20.0, 22.0), (30.0, 34.0)):
            model.start()
            assert model.state == "starting"
            model._worker.kill()
            model.look(now)
            assert (model.state, model.restart_at) == ("asleep", restart_at)
        model.start()
        self.beat(model, 0, 10)
        model.look(40.0)
        model._worker.kill()
        model.look(50.0)
        assert model.restart_at == 51.0


def test_the_host_says_once_for_each_pool_that_redis_is_away(
    settings: Settings, own_redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "shoal_workers.service.model_host")
    own_redis.stop()
    settings = replace(settings, redis_url=own_redis.plain_url)
    stopping = threading.Event()
    with closing(Broker.connect(settings.redis_url)) as broker:
        host = host_of(settings, broker, tmp_path)
        thread = threading.Thread(target=host.run, args=(stopping, stopping.set))
        thread.start()
        wait_until(lambda: len(caplog.records) > 3)
        stopping.set()
        thread.join()
    levels = [record.levelname for record in caplog.records if "trying until it does" in record.message]
    assert levels[:3] == ["WARNING", "WARNING", "DEBUG"]
    assert set(levels[2:]) == {"DEBUG"}


def test_failed_models(settings: Settings, broker: Broker, tiny_model: Path, tiny_source: Path, tmp_path: Path) -> None:
    assert "nan is not a number: write one" in CliRunner().invoke(host_command, ["a=m", "--memory-gb", "nan"]).output
    for model, budget_bytes, error, words in (
        (tiny_source, 2**20, BadSetting, r"the pool a takes 0.* raise --memory-gb"),
        (tmp_path / "none", PLENTY, NotReady, r"the worker of a ended with exit code 1: .*none"),
    ):
        with pytest.raises(error, match=words), running(host_of(settings, broker, model, budget_bytes)):
            pass


def test_models_are_pairs_and_each_pool_has_indexes_of_its_own(settings: Settings) -> None:
    for models in (["e5"], ["e5="], ["=m"], ["a=m", "a=n"]):
        with pytest.raises(BadSetting, match="is not POOL=MODEL"):
            settings_of_models(settings, models)
    settings = replace(settings, indexes="default=/own", model_aliases="x=m", workers=3)
    own, other = settings_of_models(settings, ["a=m", "b=n"])
    assert (own.model_aliases, own.workers) == ("", 1)
    assert (own.indexes, own.index_home_folder) == (settings.indexes, settings.index_home_folder)
    assert (other.indexes, other.index_home_folder) == ("", settings.home_folder / "pools" / "b")
