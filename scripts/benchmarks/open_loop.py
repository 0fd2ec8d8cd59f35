"""Latency at an arrival rate that is held, whatever the server does: shares of its capacity, and minutes at one."""

import time
from collections import defaultdict
from concurrent.futures import Future
from functools import partial

from benchmarks.arrivals import Found, generate, percentiles_ms, windows_ms
from benchmarks.plan import Plan, own_process, say
from benchmarks.server import Server, shoal
from shoal.bench.trial import Figures, Row, Trial

#: Arrival rates of the runs and of the soak, as shares of the capacity.
SHARES, SOAK_SHARE = (0.5, 0.8, 0.95), 0.8

#: A soak reports figures for each minute, or for each fifth of it if it is shorter than five minutes; and in each such
#: window, memory is read this many times.
MIN_WINDOWS, SAMPLES = 5, 6


def run(plan: Plan) -> list[Row]:
    """Find the capacity under this generator, then run the shares of it in turns."""
    with shoal() as server:
        capacity = _capacity(plan, server, "open")
        rate = capacity.median("requests/s")
        trials = [
            Trial(f"{100 * share:g} % of capacity", server.name, partial(_run, plan, server, share * rate))
            for share in SHARES
        ]
        return [capacity, *plan.interleave("open", trials)]


def soak(plan: Plan) -> list[Row]:
    """Run minutes at 80 % of the capacity: memory over time, errors, and the percentiles of each minute."""
    with shoal() as server, own_process() as process:
        capacity = _capacity(plan, server, "soak")
        rate, seconds = SOAK_SHARE * capacity.median("requests/s"), plan.minutes * 60
        window_s = min(60.0, seconds / MIN_WINDOWS)
        say(f"soak: {plan.minutes:g} minutes at {rate:,.0f} requests/s")
        load = server.embed_load(64, plan.texts.alone)
        running = process.submit(generate, load.url, load.bodies, seconds, rate)
        memory = _sample(server, running, window_s)
        found = running.result()
    windows = windows_ms(found.due_s, found.answered_s - found.due_s, window_s)
    cases = {f"soak, {plan.minutes:g} minutes": _figures(found, seconds)}
    cases |= {f"part {number}": window for number, window in enumerate(windows, 1)}
    cases |= {name: _growth(list(highest.values())) for name, highest in memory.items()}
    rows = [Row("soak", case, server.name, {name: [v] for name, v in of.items()}) for case, of in cases.items()]
    return [capacity, *rows]


def _capacity(plan: Plan, server: Server, scenario: str) -> Row:
    """Return what the server answers when 64 connections ask as fast as they can, the generator's cost included."""
    trial = Trial("capacity, 64 connections", server.name, partial(_run, plan, server, None))
    return plan.interleave(scenario, [trial])[0]


def _run(plan: Plan, server: Server, rate: float | None, seconds: int, number: int) -> Figures:
    load, before = server.embed_load(64, plan.texts.alone), server.processes.cpu_s()
    with own_process() as process:
        found = process.submit(generate, load.url, load.bodies, seconds, rate, seed=number + 1).result()
    late_ms = percentiles_ms(found.sent_s - found.due_s)
    return {
        **_figures(found, seconds),
        **{f"{name[:3]} late ms": late_ms[name] for name in ("p50 ms", "p99 ms")},
        **server.processes.ms_a_request(before, len(found.due_s), load=found.cpu_s),
    }


def _figures(found: Found, seconds: float) -> dict[str, float]:
    rate = float((found.answered_s <= seconds).sum()) / seconds
    return {"requests/s": rate, **percentiles_ms(found.answered_s - found.due_s), "failed": found.num_failed}


def _sample(server: Server, running: "Future[Found]", window_s: float) -> dict[str, dict[int, float]]:
    """Return the highest resident memory of each process in each window while the generator runs, in MB."""
    memory: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    start, samples = time.monotonic(), 0
    while not running.done():
        window = int((time.monotonic() - start) // window_s)
        for name, sizes in server.processes.memory_mb().items():
            memory[name][window] = max(memory[name][window], sizes["resident"])
        samples += 1
        time.sleep(max(0.0, start + samples * window_s / SAMPLES - time.monotonic()))
    return memory


def _growth(sizes: list[float]) -> dict[str, float]:
    group, (first, *later) = "resident memory in MB, the highest of each part", sizes
    growth = 100 * (max(later, default=first) / first - 1)
    return {f"{group}: first": first, f"{group}: of all": max(sizes), f"{group}: growth in %": growth}
