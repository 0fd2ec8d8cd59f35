"""The API under several WSGI servers, in front of a worker whose engine answers at once.

All servers take turns on one Redis and one worker, so a request costs what the server, the application and the queue
cost. Servers that Shoal does not use are installed into an environment of their own.
"""

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from stack import ROOT, Running, stack

from benchmarks.peers import Peer
from benchmarks.plan import Plan
from benchmarks.scenarios import case_of, waiting_worker
from benchmarks.server import NO_CACHE, Processes, Server
from shoal.bench.trial import Row
from shoal.settings import Settings

_GUNICORN = "gunicorn --bind 127.0.0.1:{port} --keep-alive 60 --log-level error"
_APPLICATION = "shoal_api.app:from_environment"
_CHEROOT = (
    "from cheroot.wsgi import Server; from shoal_api.app import from_environment; "
    "Server(('127.0.0.1', {port}), from_environment(), numthreads=80).safe_start()"
)

#: The commands: each server with a thread or greenlet for every connection, and settings of Granian, which we use.
COMMANDS = {
    f"granian, {Settings().api_threads} threads": ("python -m shoal api", {}),
    "granian, 64 threads": ("python -m shoal api", {"SHOAL_API_THREADS": "64"}),
    "granian, 16 threads": ("python -m shoal api", {"SHOAL_API_THREADS": "16"}),
    "granian, 2 processes": ("python -m shoal api", {"SHOAL_API_PROCESSES": "2"}),
    "gunicorn, gthread": (f"{_GUNICORN} --worker-class gthread --threads 80 '{_APPLICATION}()'", {}),
    "gunicorn, gevent": (f"{_GUNICORN} --worker-class gevent '{_APPLICATION}()'", {}),
    "cheroot": (f'python -c "{_CHEROOT}"', {}),
    "waitress": (f"waitress-serve --listen=127.0.0.1:{{port}} --threads=80 --call {_APPLICATION}", {}),
}


def run(plan: Plan) -> list[Row]:
    """Run 64 connections and one on every server, in turns."""
    texts = [[f"police {n} investigate storm damage in the north"] for n in range(1_000)]
    with stack(worker_command=waiting_worker(0.0), environment=NO_CACHE) as shoal, ExitStack() as running:
        servers = [running.enter_context(_start(name, shoal)) for name in COMMANDS]
        trials = [server.embed_trial(case_of(n), n, texts) for n in (64, 1) for server in servers]
        rows = plan.interleave("servers", trials)
        return rows + [row for server in servers for row in server.memory_rows("servers") if row.case.startswith("api")]


@contextmanager
def _start(name: str, shoal: Running) -> Iterator[Server]:
    command, settings = COMMANDS[name]
    # Our own packages come from the environment that runs this.
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *_OURS, sysconfig.get_path("purelib")]))
    environment = NO_CACHE | settings | {"PYTHONPATH": paths, "SHOAL_REDIS_URL": shoal.redis_url}
    peer = Peer(name, ROOT / "scripts" / "baselines" / "servers", command)
    with peer.start(environment) as target:
        assert target.pid
        pids = {"api": target.pid} | {process: shoal.processes[process] for process in ("redis", "worker 1")}
        yield Server(target, Processes(pids), target.url.removesuffix("/embed"))


_OURS = [str(ROOT / folder) for folder in ("shared", "api", "workers")] if sys.prefix != sys.base_prefix else []
