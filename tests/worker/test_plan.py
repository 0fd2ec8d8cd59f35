"""`shoal plan`: the simulation of workers compared with closed forms, the least numbers, and the measured costs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from queues import Queue, drive

from shoal.errors import BadSetting
from shoal.operations import Embed
from shoal_workers import capacity
from shoal_workers.capacity import MAX_TAKEN, Costs, fit, in_line, in_passes, latencies
from shoal_workers.loop.admission import MAX_JOBS
from shoal_workers.loop.worker import Worker
from shoal_workers.plan_command import plan
from shoal_workers.service.service import about

pytest_plugins = ["cli_fixtures"]

COSTS = Costs(0.03, 0.012, 0.000_33, 0.000_09)

#: Arguments of the command, and all costs.
ASKED = ["--rate", "2000", "--p99", "10s", "--tokens", "12", "--json"]
GIVEN = ["--pass-us", "30000", "--token-us", "1000"]


@pytest.mark.parametrize("busy", [0.5, 0.8])
def test_a_worker_of_single_jobs_is_a_queue_with_a_known_wait(busy: float) -> None:
    came = np.random.default_rng(1).exponential(1 / busy, 400_000).cumsum()
    wait = in_line(came, 1.0) - came - 1.0
    assert wait.mean() == pytest.approx(busy / (2 * (1 - busy)), rel=0.03)  # M/D/1, by Pollaczek and Khinchine
    assert np.allclose(in_passes(came, 1, Costs(0.25, 0.75, 0, 0), max_taken=1), in_line(came, 1.0))


@pytest.mark.parametrize(
    ("num_workers", "max_pass", "left"),
    [
        (1, 32, [1.5, 4.0, 4.0, 4.0]),  # the first job goes alone, and the others share a pass
        (1, 2, [1.5, 3.5, 3.5, 5.0]),  # a third job exceeds a pass, and its worker keeps it
        (2, 32, [1.5, 1.6, 3.5, 3.5]),  # the worker that is free first takes all jobs that wait
        (4, 32, [1.5, 1.6, 1.7, 1.8]),
    ],
)
def test_a_free_worker_takes_the_jobs_that_wait(num_workers: int, max_pass: int, left: list[float]) -> None:
    came = np.array([0.0, 0.1, 0.2, 0.3])
    assert in_passes(came, num_workers, Costs(1.0, 0.5, 0, 0, max_pass)).tolist() == pytest.approx(left)
    assert MAX_TAKEN == MAX_JOBS


def test_the_plan_has_the_least_number_of_workers() -> None:
    made = capacity.plan(300, 0.5, COSTS)
    p99_s = [
        np.quantile(latencies(300, made.numbers | {"workers": made.numbers["workers"] + more}, COSTS), 0.99)
        for more in (-1, 0, 1, 2, 4, 8)
    ]
    assert p99_s == sorted(p99_s, reverse=True)
    assert p99_s[0] > 0.5 >= p99_s[1] == made.p99_s
    at_limit = np.quantile(latencies(made.limits["workers"], made.numbers, COSTS), 0.99)
    assert at_limit <= 0.5 < np.quantile(latencies(1.03 * made.limits["workers"], made.numbers, COSTS), 0.99)


def test_a_rate_above_the_limit_of_a_redis_is_divided() -> None:
    made = capacity.plan(1_000_000, 0.5, Costs(0.001, 0.007, 0.000_33, 0.000_09))
    assert (made.numbers["redis"], made.numbers["api"]) == (129, 472)
    assert made.numbers["workers"] % 129 == 0
    assert 1_000_000 * 0.007 < made.numbers["workers"] < 1_000_000 * 0.008
    assert min(made.limits.values()) >= 1_000_000


def test_the_highest_rate_of_workers_is_the_rate_of_full_passes() -> None:
    made = capacity.plan(5_000, 1_000.0, Costs(30.0, 12.0, 0, 0))
    assert 5_000 <= made.limits["workers"] <= 1.001 * made.numbers["workers"] / (30 / MAX_TAKEN + 12)


def test_a_time_below_the_time_of_a_pass_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"--p99 is 5 ms, and .* up to 42\.7 ms, 42 of it in a pass of one text: "):
        capacity.plan(300, 0.005, COSTS)


def test_costs_are_fitted_to_passes_of_different_sizes() -> None:
    sizes = np.arange(1, 101) % 10 * 12.0
    seconds = 0.03 + 0.001 * sizes
    sums = [len(sizes), *(float(values.sum()) for values in (sizes, sizes**2, seconds, sizes * seconds))]
    assert fit(sums) == pytest.approx((0.03, 0.001))
    for too_few in ([number / 10 for number in sums], [100, 1_200, 14_400, 4.2, 50.4]):
        with pytest.raises(BadSetting, match="too few or too similar in size: send single requests"):
            fit(too_few)


def test_costs_come_from_the_running_pool(shoal: CliRunner, worker: Worker, queue: Queue) -> None:
    worker.pool.announce(worker.id, about(worker))
    assert "report 0 passes" in str(shoal.invoke(plan, ASKED).exception)
    for n in range(80):
        queue.put("interactive", [Embed([f"storm {n} {k}"], reply_to="me") for k in range(8 if n % 2 else 1)])
        drive(worker)
    told = about(worker)
    assert told["rounds"][0] == pytest.approx(80, rel=0.05)
    assert told["texts_per_s"] > 0
    worker.pool.announce(worker.id, told)
    found: dict[str, Any] = json.loads(shoal.invoke(plan, ASKED).stdout)
    assert found["costs"]["pass_us"]["from"] == "1 workers of the pool (openvino, f32, threads: 1)"
    assert [found["costs"][name]["value"] / 1e6 for name in ("pass_us", "token_us")] == list(fit(told["rounds"]))
    assert (found["numbers"]["workers"] > 0, found["p99_s"] <= 10) == (True, True)


def test_without_a_pool_passes_are_measured(shoal: CliRunner, tiny_source: Path, home: Path) -> None:
    local = ["--model", str(tiny_source), "--home", str(home), "--engine", "openvino", "--precision", "f32"]
    away = ["--redis-url", "redis://127.0.0.1:1/0", "--max-batch-tokens", "12"]
    told = shoal.invoke(plan, [*ASKED, *local, *away])
    assert "because no pool answers: Redis does not answer" in told.stderr
    idle = shoal.invoke(plan, [*ASKED, *local, "--max-batch-tokens", "12"])
    assert "because no pool answers: no worker is ready" in idle.stderr
    found = json.loads(told.stdout)
    assert found["costs"]["token_us"]["from"] == "processor time here (openvino, f32, threads: 1)"
    assert found["costs"]["job_us"]["from"] == "docs/experiments.md"
    refused = shoal.invoke(plan, ["--rate", "9", "--p99", "1s", "--tokens", "5000", *local])
    assert str(refused.exception).startswith("--tokens is 5,000, and ")


def test_people_get_a_table(shoal: CliRunner) -> None:
    shown = shoal.invoke(plan, ["--rate", "20000", "--p99", "500ms", "--tokens", "12", *GIVEN]).stdout
    assert "\nredis          3           3     3.2 GiB  23,333 requests/s\n" in shown
    assert "\neach of the 3 Redis servers has a pool of its own, with as many workers\n" in shown
    assert "\npass_us: 30,000.0, from the flag\n" in shown
    assert "50 is not a time" in shoal.invoke(plan, ["--rate", "9", "--p99", "50", "--tokens", "12"]).output.replace(
        "'", ""
    )
