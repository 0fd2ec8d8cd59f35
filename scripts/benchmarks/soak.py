"""Minutes at 80 % of the capacity: memory over time, errors, and the slowest one in a hundred of each minute."""

import subprocess
import time

from benchmarks.open_loop import capacity, generate, result, sent
from benchmarks.plan import Plan, say
from benchmarks.server import Server, shoal
from shoal.bench.trial import Row

#: Share of the capacity at which requests arrive.
SHARE = 0.8

#: Figures are of a minute each, or of a fifth of a soak that is shorter than five.
MIN_WINDOWS = 5

#: Memory is looked at so often in each of those.
SAMPLES = 6


def run(plan: Plan) -> list[Row]:
    """A row for each minute's latencies, and one for the memory of each process."""
    with shoal() as server, sent(plan) as bodies:
        found_capacity = capacity(plan, server, bodies, "soak")
        rate, seconds = SHARE * found_capacity.median("requests/s"), plan.minutes * 60
        window_s = min(60.0, seconds / MIN_WINDOWS)
        say(f"soak: {plan.minutes:g} minutes at {rate:,.0f} requests/s")
        generator = generate(server, bodies, rate, seconds, window_s=window_s)
        memory = _sample(server, generator, window_s)
        found = result(generator)
        figures = {"requests/s": [found["requests/s"]], "failed": [float(found["num_failed"])]}
        figures |= {name: [value] for name, value in found["all"].items()}
        rows = [found_capacity, Row("soak", f"soak, {plan.minutes:g} minutes", server.name, figures)]
        for number, window in enumerate(found["windows"], 1):
            rows.append(Row("soak", f"part {number}", server.name, {name: [value] for name, value in window.items()}))
        return rows + [_memory_row(name, server.name, sizes) for name, sizes in memory.items()]


def _sample(server: Server, generator: "subprocess.Popen[str]", window_s: float) -> dict[str, list[float]]:
    """The highest resident memory of each process in each window while the generator runs, in MB."""
    memory: dict[str, list[float]] = {}
    start, samples = time.monotonic(), 0
    while generator.poll() is None:
        window = int((time.monotonic() - start) // window_s)
        for name, sizes in server.processes.memory_mb().items():
            of_process = memory.setdefault(name, [])
            of_process += [0.0] * (window + 1 - len(of_process))
            of_process[window] = max(of_process[window], sizes["resident"])
        samples += 1
        time.sleep(max(0.0, start + samples * window_s / SAMPLES - time.monotonic()))
    return memory


def _memory_row(process: str, target: str, sizes: list[float]) -> Row:
    group = "resident memory in MB, the highest of each part"
    first, *later = sizes
    growth = 100 * (max(later, default=first) / first - 1)
    return Row(
        "soak",
        process,
        target,
        {f"{group}: first": [first], f"{group}: of all": [max(sizes)], f"{group}: growth in %": [growth]},
    )
