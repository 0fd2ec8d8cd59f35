"""The API under several WSGI servers, in front of a worker that answers at once: `python -m benchmarks.servers`.

Run it in scripts/. All servers take turns on one Redis and one worker, so what a request costs is what the server, the
application and the queue cost. Servers that Shoal does not use are installed into an environment of their own. With
`--checkout FOLDER`, another checkout's API is measured beside this one.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from stack import HOME, SHOAL, Running, about_machine, free_port, stack

from benchmarks import answering
from benchmarks.embed import case_of
from benchmarks.peers import Target
from benchmarks.plan import say
from benchmarks.processes import Processes
from benchmarks.server import Server
from shoal.bench import trial
from shoal.bench.table import tables
from shoal.errors import NotReady
from shoal.supervisor.process import Service

#: What is installed beside our own packages.
REQUIREMENTS = (
    "cheroot==11.1.2",
    "gevent==26.9.0",
    "gunicorn==27.0.1",
    "gunicorn_h1c==0.6.9",
    "waitress==3.0.2",
)

READY_WITHIN_S = 30.0

_CHEROOT = (
    "from cheroot.wsgi import Server; from shoal_api.app import from_environment; "
    "Server(('127.0.0.1', {port}), from_environment(), numthreads=80).safe_start()"
)


@dataclass(frozen=True)
class Candidate:
    """A server to try: its command, of which {port} is the port, and settings of Shoal's for it."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def start(self, shoal: Running) -> Iterator[Server]:
        """Runs it on the Redis of `shoal`, yields it once it answers, and stops it.

        Raises NotReady.
        """
        port = free_port()
        ours = {"SHOAL_REDIS_URL": shoal.redis_url, "SHOAL_PORT": str(port)}
        service = Service(self.name, [word.format(port=port) for word in self.command], ours | dict(self.environment))
        url = f"http://127.0.0.1:{port}"
        try:
            service.start()
            _wait_until_ready(service, url)
            assert service.process
            pids = {"api": service.process.pid} | {name: shoal.processes[name] for name in ("redis", "worker 1")}
            yield Server(Target(self.name, f"{url}/embed"), Processes(pids), url)
        finally:
            service.stop()


def candidates() -> list[Candidate]:
    """The servers, each with a thread or greenlet for every connection, and what the number of threads changes."""
    program = _installed()
    api = (*SHOAL, "api")
    gunicorn = (f"{program}/gunicorn", "--bind", "127.0.0.1:{port}", "--keep-alive", "60", "--log-level", "error")
    application = "shoal_api.app:from_environment()"
    return [
        Candidate("granian, 256 threads", api),
        Candidate("granian, 64 threads", api, {"SHOAL_API_THREADS": "64"}),
        Candidate("granian, 16 threads", api, {"SHOAL_API_THREADS": "16"}),
        Candidate("granian, 2 processes", api, {"SHOAL_API_PROCESSES": "2"}),
        Candidate("gunicorn, gthread", (*gunicorn, "--worker-class", "gthread", "--threads", "80", application)),
        Candidate("gunicorn, gevent", (*gunicorn, "--worker-class", "gevent", application)),
        Candidate("cheroot", (f"{program}/python", "-c", _CHEROOT)),
        Candidate(
            "waitress",
            (f"{program}/waitress-serve", "--listen=127.0.0.1:{port}", "--threads=80", "--call", application[:-2]),
        ),
    ]


def other_checkout(folder: Path) -> Candidate:
    """The API of another checkout, under the server that it uses."""
    paths = os.pathsep.join(str(folder.absolute() / name) for name in ("shared", "api", "workers"))
    return Candidate(f"checkout {folder.name}", (*SHOAL, "api"), {"PYTHONPATH": paths})


def _installed() -> Path:
    """The programs of an environment that has the other servers, and our own packages through ours."""
    home = HOME / "bench" / "servers-env"
    python = home / "bin" / "python"
    if not python.exists():
        say(f"installing servers into {home}")
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    theirs = sysconfig.get_path("purelib", vars={"base": str(home)})
    Path(theirs, "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return python.parent


def _wait_until_ready(service: Service, url: str) -> None:
    until = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < until and service.exit_code() is None:
        try:
            urlopen(f"{url}/health", timeout=2).close()
            return
        except URLError:
            time.sleep(0.1)
    raise NotReady(f"{service.name} does not answer: the lines above may say why")


def main() -> None:
    """Prints Markdown: the machine, and a table each for rates, processor time and memory."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.servers", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="length of a run")
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 1])
    parser.add_argument("--only", default="", help="servers whose name begins so")
    parser.add_argument("--checkout", type=Path, action="append", default=[], help="another checkout to measure beside")
    args = parser.parse_args()
    worker = [sys.executable, str(Path(answering.__file__))]
    wanted = [candidate for candidate in candidates() if candidate.name.startswith(args.only)]
    texts = [[f"police {n} investigate storm damage in the north"] for n in range(1_000)]
    with stack({}, 1, worker) as shoal, ExitStack() as running:
        wanted += map(other_checkout, args.checkout)
        servers = [running.enter_context(candidate.start(shoal)) for candidate in wanted]
        trials = [
            server.embed_trial(case_of(connections), connections, texts)
            for connections in args.connections
            for server in servers
        ]
        rows = trial.interleave("servers", trials, args.runs, args.seconds, say)
        rows += [row for server in servers for row in server.memory_rows("servers") if row.case.startswith("api")]
    print("\n".join(f"- {name}: {text}" for name, text in about_machine().items()), end="\n\n")
    print(tables(rows))


if __name__ == "__main__":
    main()
