"""Capacity planning: simulated latencies for given numbers of processes, and the least numbers for a wanted latency.

Pure functions. Requests have one text each and come at random (a Poisson process). Each goes through an API process
and a Redis, which serve requests one by one, and then a worker, which computes waiting jobs together.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import BadSetting

#: Largest number of jobs that a worker takes at a time, and of jobs that wait in a worker, as in `loop.admission` and
#: `loop.scheduler`.
MAX_TAKEN, MAX_WAITING = 32, 64

#: Largest share of the time in which an API process or a Redis is busy.
MAX_BUSY = 0.7

#: The workers' highest rate is looked for among `NUM_STEPS` rates, each `STEP` times the previous one.
STEP, NUM_STEPS = 1.02, 512

#: Least number of passes to fit costs to, and least standard deviation / mean of their sizes.
MIN_PASSES, MIN_SPREAD = 50, 0.2

#: Number of simulated requests. The first tenth is not counted, because the simulation begins without load.
NUM_REQUESTS = 50_000

Times = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Costs:
    """The seconds of a pass without texts, of each text in a pass, and of a request in an API process and in Redis.

    A pass has at most `max_pass` texts.
    """

    pass_s: float
    text_s: float
    api_s: float
    redis_s: float
    max_pass: int = MAX_TAKEN


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of processes of each part (API, Redis, workers), and the highest rate of requests for each part.

    At the planned rate, half of the requests take at most `p50_s`, and 99 % at most `p99_s`.
    """

    numbers: dict[str, int]
    limits: dict[str, float]
    p50_s: float
    p99_s: float


def fit(sums: Sequence[float]) -> tuple[float, float]:
    """Return the seconds of a pass without tokens, and of each token in a pass, fitted to heartbeats' `rounds`.

    The fit is by least squares. Raises BadSetting if the rounds are too few, or too similar in size.
    """
    num, tokens, tokens_squared, seconds, token_seconds = sums
    spread = num * tokens_squared - tokens**2
    if num < MIN_PASSES or spread < (MIN_SPREAD * tokens) ** 2:
        raise BadSetting(
            f"the workers report {num:,.0f} passes, too few or too similar in size: send single requests, and many "
            "at a time for a minute, or name --pass-us and --token-us"
        )
    token_s = max(0.0, (num * token_seconds - tokens * seconds) / spread)
    return max(0.0, (seconds - token_s * tokens) / num), token_s


def in_line(came: Times, seconds: float) -> Times:
    """Return when each request leaves a server that serves one request at a time, for `seconds` each."""
    served = np.arange(1, len(came) + 1) * seconds
    return served + np.maximum.accumulate(came + seconds - served)


def in_passes(came: Times, num_workers: int, costs: Costs, max_taken: int = MAX_TAKEN) -> Times:
    """Return the time at which each job leaves its worker.

    After each pass, a worker takes at most `max_taken` of the jobs that wait, and computes the next pass of its jobs.
    """
    num_workers = min(num_workers, len(came))  # more workers than jobs change nothing
    free, held = [(0.0, n) for n in range(num_workers)], [deque[int]() for _ in range(num_workers)]
    times, left, num_taken = [*came.tolist(), inf], np.empty(len(came)), 0
    while free:
        now_s, worker = heappop(free)
        jobs = held[worker]
        now_s = now_s if jobs else max(now_s, times[num_taken])
        room = min(max_taken, MAX_WAITING - len(jobs), len(came) - num_taken)
        while room > 0 and times[num_taken] <= now_s:
            jobs.append(num_taken)
            num_taken, room = num_taken + 1, room - 1
        if batch := [jobs.popleft() for _ in range(min(costs.max_pass, len(jobs)))]:  # empty if no job is left
            now_s += costs.pass_s + len(batch) * costs.text_s
            left[batch] = now_s
            heappush(free, (now_s, worker))
    return left


def latencies(rate: float, numbers: dict[str, int], costs: Costs) -> Times:
    """Return the latencies of simulated requests, in seconds. The seed is fixed.

    All API processes have the same load, and so have all Redis servers with their workers: one of each is simulated.
    """
    came = np.random.default_rng(0).exponential(1 / rate, (2, NUM_REQUESTS)).cumsum(axis=1)
    at_api, at_redis = came[0] * numbers["api"], came[1] * numbers["redis"]
    done = in_passes(in_line(at_redis, costs.redis_s), numbers["workers"] // numbers["redis"], costs)
    taken: Times = in_line(at_api, costs.api_s) - at_api + done - at_redis
    return taken[NUM_REQUESTS // 10 :]


def plan(rate: float, p99_s: float, costs: Costs) -> Plan:
    """Return the least numbers of processes with which 99 % of the requests take at most `p99_s`. Raises BadSetting."""
    busy_s = {"api": costs.api_s, "redis": costs.redis_s}
    numbers = {part: max(1, ceil(rate * seconds / MAX_BUSY)) for part, seconds in busy_s.items()}

    def quantiles(num_workers: int, rate: float = rate) -> Any:
        found = latencies(rate, numbers | {"workers": num_workers * numbers["redis"]}, costs)
        return np.quantile(found, (0.5, 0.99)).tolist()

    _, best_s = quantiles(NUM_REQUESTS)  # each request has a worker of its own, so none waits
    if best_s > p99_s:
        raise BadSetting(
            f"--p99 is {1e3 * p99_s:g} ms, and with any number of workers 99 % of the requests take up to "
            f"{1e3 * best_s:.3g} ms, {1e3 * (costs.pass_s + costs.text_s):.3g} of it in a pass of one text: allow "
            "more, or make passes quicker by --precision int8, more threads or shorter texts"
        )
    full_s = max(1e-9, costs.pass_s / min(costs.max_pass, MAX_TAKEN) + costs.text_s)  # time of a text in a full pass
    least = int(rate / numbers["redis"] * full_s) + 1
    num = bisect_left(range(NUM_REQUESTS), True, least, key=lambda num: quantiles(num)[1] <= p99_s)
    step = bisect_left(range(NUM_STEPS), True, 1, key=lambda step: quantiles(num, rate * STEP**step)[1] > p99_s)
    numbers["workers"] = num * numbers["redis"]
    limits = {part: numbers[part] * MAX_BUSY / seconds for part, seconds in busy_s.items() if seconds}
    limits["workers"] = min(rate * STEP ** (step - 1), numbers["workers"] / full_s)
    return Plan(numbers, limits, *quantiles(num))
