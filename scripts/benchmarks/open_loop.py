"""Latency at an arrival rate that is held, whatever the server does: 50, 80 and 95 % of its capacity."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from stack import ROOT

from benchmarks.arrivals import Order
from benchmarks.embed import sent_headlines
from benchmarks.plan import Plan
from benchmarks.server import Server, shoal
from shoal.bench.trial import Figures, Row, Trial

#: Shares of the capacity at which requests arrive.
SHARES = (0.5, 0.8, 0.95)

#: The command that makes the load.
GENERATOR = [sys.executable, "-m", "benchmarks.arrivals"]


def run(plan: Plan) -> list[Row]:
    """First the capacity under this generator, then the shares of it in turns."""
    with shoal() as server, sent(plan) as bodies:
        rows = [capacity(plan, server, bodies, "open")]
        rate = rows[0].median("requests/s")
        trials = [
            Trial(f"{100 * share:g} % of capacity", server.name, partial(_run, server, bodies, share * rate))
            for share in SHARES
        ]
        return rows + plan.interleave("open", trials)


def capacity(plan: Plan, server: Server, bodies: Path, scenario: str) -> Row:
    """What the server answers when 64 connections ask as fast as they can, the generator's own cost included."""
    trial = Trial("capacity, 64 connections", server.name, partial(_run, server, bodies, None))
    return plan.interleave(scenario, [trial])[0]


@contextmanager
def sent(plan: Plan) -> Iterator[Path]:
    """A file with the bodies to send."""
    with TemporaryDirectory() as folder:
        bodies = Path(folder) / "bodies"
        bodies.write_bytes(b"\n".join(json.dumps({"inputs": text}).encode() for text in sent_headlines(plan)))
        yield bodies


def generate(server: Server, bodies: Path, rate: float | None, seconds: float, **more: Any) -> "subprocess.Popen[str]":
    """Starts the generator; its output is what it found."""
    url = urlsplit(server.target.url)
    order = Order(str(url.hostname), url.port or 80, url.path, str(bodies), seconds, rate=rate, **more)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    process = subprocess.Popen(GENERATOR, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    process.stdin.write(json.dumps(asdict(order)))
    process.stdin.close()
    return process


def result(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """What the generator found, waited for."""
    assert process.stdout
    with process:
        found = process.stdout.read()
    if process.returncode:
        sys.exit(f"the load generator ended with exit code {process.returncode}: the line above says why")
    return dict(json.loads(found))


def _run(server: Server, bodies: Path, rate: float | None, seconds: int, number: int) -> Figures:
    before = server.processes.cpu_s()
    found = result(generate(server, bodies, rate, seconds, seed=number + 1))
    taken_s = {name: now - before[name] for name, now in server.processes.cpu_s().items()} | {"load": found["cpu_s"]}
    server.processes.wait_until_idle()
    figures = {"requests/s": found["requests/s"], **found["all"], "failed": found["num_failed"]}
    figures |= {f"{name[:3]} late ms": found["late"][name] for name in ("p50 ms", "p99 ms")}
    return figures | {
        f"processor ms a request: {name}": cpu_s * 1_000 / found["num_requests"] for name, cpu_s in taken_s.items()
    }
