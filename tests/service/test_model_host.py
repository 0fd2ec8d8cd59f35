"""`shoal host`: several models on one machine, each while jobs come for it, within a budget of memory."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S, wait_until

from shoal import Client
from shoal.broker.broker import Broker
from shoal.contract.keys import Keys
from shoal.errors import BadSetting, NotReady, ShoalError
from shoal.queue.pool import Pool
from shoal.settings import Settings
from shoal_workers.service.model_host import HostedModel, ModelHost, settings_of_models

#: More memory than any model takes, and longer than any test.
PLENTY, NEVER_S = 2**50, 1e9


@pytest.fixture
def settings(redis_url: str, keys: Keys, home: Path) -> Settings:
    own: dict[str, Any] = {
        "key_prefix": keys.prefix,
        "pool": "a",
        "home": str(home),
        "cache_mb": 0,
        "precision": "f32",
        "threads": 1,
    }
    return Settings(redis_url=redis_url, **own)


@pytest.fixture
def broker(redis_url: str) -> Iterator[Broker]:
    with closing(Broker.connect(redis_url)) as broker:
        yield broker


@contextmanager
def running(host: ModelHost) -> Iterator[None]:
    """Run the host in a thread until its models are known, and stop it at the end."""
    stopping, known, faults = threading.Event(), threading.Event(), []

    def run() -> None:
        try:
            host.run(stopping, known.set)
        except ShoalError as error:
            faults.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: known.is_set() or faults)
        if faults:
            raise faults[0]
        yield
    finally:
        stopping.set()
        thread.join()


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


def test_models_take_turns_where_the_budget_has_room_for_one(
    settings: Settings, broker: Broker, tiny_model: Path, tiny_source: Path
) -> None:
    host = host_of(settings, broker, tiny_source)
    with running(host):
        assert states(host) == ["ready", "ready"]
        host.budget_bytes = int(1.5 * max(model.memory_bytes for model in host.models))
        wait_until(lambda: sorted(states(host)) == ["asleep", "ready"])
        for pool in ("a", "b", "a"):
            assert embed(settings, pool) == 1
            wait_until(lambda: sorted(states(host)) == ["asleep", "ready"])
            assert [model.name for model in host.models if model.state == "ready"] == [pool]
            # Clients see what the sleeping model serves.
            assert sorted(state for (state,) in ready_states(host, broker, settings.key_prefix)) == ["asleep", "ready"]
    assert ready_states(host, broker, settings.key_prefix) == [[], []]


def test_a_model_that_outgrows_the_budget_while_it_serves_runs_alone(
    settings: Settings, broker: Broker, tiny_model: Path, tiny_source: Path
) -> None:
    host = host_of(settings, broker, tiny_source)
    with running(host):
        host.budget_bytes = 1
        for pool in ("a", "b"):
            wait_until(lambda: sorted(states(host)) == ["asleep", "ready"])
            assert embed(settings, pool) == 1


def test_an_idle_model_sleeps_and_its_next_job_starts_it(
    settings: Settings, broker: Broker, tiny_model: Path, tiny_source: Path
) -> None:
    host = host_of(settings, broker, tiny_source)
    with running(host):
        host.idle_s = 0
        wait_until(lambda: states(host) == ["asleep", "asleep"])
        host.idle_s = NEVER_S
        assert embed(settings, "b") == 1
        wait_until(lambda: states(host) == ["asleep", "ready"])
        # So does a worker that is killed.
        (about,) = Pool(broker, Keys(settings.key_prefix, "b")).ready().values()
        os.kill(about["pid"], signal.SIGKILL)
        wait_until(lambda: states(host) == ["asleep", "asleep"])
        assert embed(settings, "b") == 1


def test_a_model_that_needs_more_than_the_budget_is_named(
    settings: Settings, broker: Broker, tiny_model: Path, tiny_source: Path
) -> None:
    with (
        pytest.raises(BadSetting, match=r"the pool a takes 0.* raise --memory-gb"),
        running(host_of(settings, broker, tiny_source, 2**20)),
    ):
        pass


def test_a_model_that_cannot_be_opened_ends_the_host_with_the_reason(
    settings: Settings, broker: Broker, tmp_path: Path
) -> None:
    with (
        pytest.raises(NotReady, match=r"the worker of a ended with exit code 1: .*none"),
        running(host_of(settings, broker, tmp_path / "none")),
    ):
        pass


@pytest.mark.parametrize("models", [["e5"], ["e5="], ["=m"], ["a=m", "a=n"]])
def test_models_that_are_no_pairs_are_refused(settings: Settings, models: list[str]) -> None:
    with pytest.raises(BadSetting, match="is no POOL=MODEL"):
        settings_of_models(settings, models)


def test_each_pool_has_indexes_of_its_own(settings: Settings) -> None:
    settings = replace(settings, indexes="default=/own")
    own, other = settings_of_models(settings, ["a=m", "b=n"])
    assert (own.indexes, own.index_home_folder) == (settings.indexes, settings.index_home_folder)
    assert (other.indexes, other.index_home_folder) == ("", settings.home_folder / "pools" / "b")
