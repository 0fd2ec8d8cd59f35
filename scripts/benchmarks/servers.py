"""The API under several WSGI servers, in front of a worker whose engine answers at once.

All servers take turns on one Redis and one worker, so a request costs what the server, the application and the queue
cost. Servers that Shoal does not use are installed into an environment of their own.
"""

import os
from contextlib import ExitStack
from sysconfig import get_path

from stack import ROOT, stack

from benchmarks.peers import Peer
from benchmarks.plan import Plan
from benchmarks.scenarios import case_of, waiting_worker
from benchmarks.server import NO_CACHE, Processes, Server
from shoal.bench.trial import Row

_GUNICORN = "gunicorn --bind 127.0.0.1:{port} --keep-alive 60 --log-level error"
_APPLICATION = "shoal_api.app:from_environment"
_CHEROOT = (
    "from cheroot.wsgi import Server; from shoal_api.app import from_environment; "
    "Server(('127.0.0.1', {port}), from_environment(), numthreads=80).safe_start()"
)

#: Our own packages come from this checkout, their libraries from the environment that runs this.
_PATHS = os.pathsep.join([*(str(ROOT / folder) for folder in ("shared", "api", "workers")), get_path("purelib")])

#: The commands: Granian, which we use, and WSGI servers with a thread or greenlet for every connection.
COMMANDS = {
    "granian": ("python -m shoal api", {}),
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
        servers = []
        for name, (command, settings) in COMMANDS.items():
            peer = Peer(name, ROOT / "scripts" / "baselines" / "servers", command)
            environment = {**NO_CACHE, **settings, "PYTHONPATH": _PATHS, "SHOAL_REDIS_URL": shoal.redis_url}
            target = running.enter_context(peer.start(environment))
            assert target.pid
            processes = Processes(shoal.processes | {"api": target.pid})
            servers.append(Server(target, processes, target.url.removesuffix("/embed")))
        trials = [server.embed_trial(case_of(n), n, texts) for n in (64, 1) for server in servers]
        rows = plan.interleave("servers", trials)
        return rows + [row for server in servers for row in server.memory_rows("servers") if row.case.startswith("api")]
