"""Measures a service of its own with wrk: throughput, latency, start-up and memory. See docs/performance.md."""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from running import HOME, SHOAL, about_machine, datasets, index_of, post, stack

LUA = """
local bodies = {}
for line in io.lines("%s") do bodies[#bodies + 1] = line end
local n = %d
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
function request() n = n %% #bodies + 1; return wrk.format(nil, nil, nil, bodies[n]) end
"""


@dataclass(frozen=True)
class Scenario:
    """One kind of load."""

    name: str
    path: str
    connections: int
    bodies: list[str]


def scenarios(headlines: list[str]) -> list[Scenario]:
    """The loads to measure: one real headline a request."""
    embed = [json.dumps({"inputs": text}) for text in headlines]
    search = [json.dumps({"queries": text, "k": 5}) for text in headlines]
    return [
        Scenario("embed, 1 connection", "/embed", 1, embed),
        Scenario("embed, 64 connections", "/embed", 64, embed),
        Scenario("search over 20,000, 1 connection", "/search", 1, search),
        Scenario("search over 20,000, 64 connections", "/search", 64, search),
    ]


def run_wrk(url: str, scenario: Scenario, seconds: int, seed: int) -> dict[str, float]:
    """One run: requests a second, and latencies in milliseconds. Any answer that is not 200 ends the benchmark."""
    with TemporaryDirectory() as folder:
        bodies, script = Path(folder) / "bodies", Path(folder) / "load.lua"
        bodies.write_text("\n".join(scenario.bodies))
        script.write_text(LUA % (bodies, seed % len(scenario.bodies)))
        load = ["-t1", f"-c{scenario.connections}", f"-d{seconds}s", "--timeout", "30s", "--latency"]
        output = subprocess.run(
            ["wrk", *load, "-s", str(script), url + scenario.path], check=True, capture_output=True, text=True
        ).stdout
    if "Non-2xx" in output or "Socket errors" in output:
        sys.exit(f"{scenario.name}: the service failed\n{output}")
    found = {"requests/s": float(re.findall(r"Requests/sec:\s+([\d.]+)", output)[0])}
    for percent in ("50", "99"):
        value, unit = re.findall(rf"{percent}%\s+([\d.]+)(us|ms|s)\b", output)[0]
        found[f"p{percent} ms"] = float(value) * {"us": 0.001, "ms": 1, "s": 1000}[unit]
    return found


def measure(url: str, headlines: list[str], runs: int, seconds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Median, lowest and highest of several runs of each scenario, after a warm-up; the runs are interleaved."""
    results: dict[str, list[dict[str, float]]] = {}
    everything = scenarios(headlines)
    for number in range(runs + 1):
        for scenario in everything:
            found = run_wrk(url, scenario, 2 if number == 0 else seconds, seed=number * 4_001)
            if number:
                results.setdefault(scenario.name, []).append(found)
                print(f"  run {number}: {scenario.name}: {found['requests/s']:,.0f}/s", file=sys.stderr)
    return {
        name: {
            key: {"median": statistics.median(v := [run[key] for run in found]), "min": min(v), "max": max(v)}
            for key in found[0]
        }
        for name, found in results.items()
    }


def start_times(runs: int) -> list[float]:
    """Seconds from starting a worker to the moment it is ready, its cache warm; a running stack has the queue."""
    from running import HOME as home  # the benchmark's own stack

    times = []
    for _ in range(runs):
        started = time.perf_counter()
        process = subprocess.Popen(
            [*SHOAL, "worker", "--home", str(home / "bench" / "stack"), "--log-level", "info"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr
        for line in process.stderr:
            if "is taking jobs" in line:
                times.append(time.perf_counter() - started)
                process.terminate()
        process.wait()
    return times


def processes() -> dict[str, dict[str, float]]:
    """Resident memory of each process of the benchmark's stack, in MB, and the part that is not shared."""
    found: dict[str, dict[str, float]] = {}
    for process in psutil.process_iter(["cmdline", "environ"]):
        words = process.info["cmdline"] or []
        if (process.info["environ"] or {}).get("SHOAL_HOME") != str(HOME / "bench" / "stack"):
            continue
        kind = next(
            (kind for kind in ("worker", "api", "redis-server") if any(kind in word for word in words[:4])), None
        )
        if kind or "multiprocessing" in " ".join(words):
            memory = process.memory_full_info()
            name = f"{kind or 'api server'} {process.pid}"
            found[name] = {"resident MB": memory.rss / 2**20, "private MB": memory.uss / 2**20}
    return found


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """The results as a Markdown table: median (lowest to highest)."""
    rows = ["| scenario | requests/s | p50 ms | p99 ms |", "|---|---|---|---|"]
    for name, found in results.items():
        cells = [f"{v['median']:,.1f} ({v['min']:,.1f}-{v['max']:,.1f})" for v in found.values()]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Prints a table and, with --json, saves the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not shutil.which("wrk"):
        sys.exit("wrk makes the load: install it (Debian: apt-get install wrk)")
    headlines = datasets().abc_headlines()
    index = index_of("headlines-20000", {str(n): text for n, text in enumerate(headlines[:20_000])})
    with stack(args.port, {"default": index}, args.workers) as url:
        post(f"{url}/embed", {"inputs": headlines[:64]})
        results = measure(url, headlines[20_000:60_000], args.runs, args.seconds)
        memory = processes()
        starts = start_times(args.runs)
    report = {"machine": about_machine(), "results": results, "memory": memory, "worker start s": starts}
    print("\n".join(f"{name}: {text}" for name, text in report["machine"].items()), end="\n\n")
    print(table(results), end="\n\n")
    for name, found in memory.items():
        print(f"{name}: " + ", ".join(f"{key} {value:.0f}" for key, value in found.items()))
    print(f"worker ready after {statistics.median(starts):.2f} s (median of {len(starts)}, warm cache)")
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
