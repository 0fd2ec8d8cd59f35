"""A separate stack for benchmarks and quality checks, and the real texts that these use."""

import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPResponse
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any
from urllib.request import Request, urlopen

import psutil

from shoal.broker import embedded
from shoal.errors import BadSetting, NotReady
from shoal.process.progress import wait_until
from shoal.settings import Settings
from shoal.supervisor.process import Service
from shoal_workers.model.model import Model, prepared_folder

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(os.environ.get("SHOAL_HOME", "~/.shoal")).expanduser()
DATA = Path(os.environ.get("SHOAL_DATA", ROOT.parent / "shared" / "data"))
SHOAL = [sys.executable, "-m", "shoal"]

#: Environment variables that set the number of threads in libraries.
NATIVE_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")

#: Longest time until a process answers, in seconds.
READY_WITHIN_S = 180.0


def datasets() -> Any:
    """Return the module that loads the real text."""
    if not (DATA / "datasets.py").exists():
        sys.exit(f"there is no {DATA / 'datasets.py'}: name the folder of the test data with SHOAL_DATA")
    spec = spec_from_file_location("datasets", DATA / "datasets.py")
    assert spec
    assert spec.loader
    spec.loader.exec_module(module := module_from_spec(spec))
    return module


@dataclass(frozen=True)
class Checkout:
    """A checkout of Shoal, which is used only by its `shoal` command and over HTTP.

    `home` is the folder of its prepared models and its indexes, whose formats may differ from this checkout's.
    """

    name: str
    shoal: list[str]
    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def at(cls, folder: Path) -> "Checkout":
        """Return the checkout in a folder. Raises BadSetting if it has no environment."""
        folder = folder.resolve()
        shoal = folder / ".venv" / "bin" / "shoal"
        if not shoal.exists():
            raise BadSetting(f"{shoal} does not exist: run scripts/check in {folder} first, which makes it")
        home = HOME / "bench" / f"checkout-{folder.name}-{hashlib.sha256(bytes(folder)).hexdigest()[:8]}"
        return cls(folder.name, [str(shoal)], home, {"PYTHONPATH": "", "SHOAL_HOME": str(home)})

    def run(self, *words: str, quietly: bool = False) -> bool:
        """Run a command of the checkout; return True if it succeeded."""
        errors = subprocess.DEVNULL if quietly else None
        command, environment = [*self.shoal, *words], os.environ | self.environment
        return not subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors).returncode

    def can_serve(self, index: Path) -> bool:
        """Return True if the folder has an index that can be served."""
        return self.run("index", "info", str(index), quietly=True)


#: This checkout.
OURS = Checkout("shoal", SHOAL, HOME)


def index_of(name: str, documents: Mapping[str, str], checkout: Checkout = OURS) -> Path:
    """Return the index of the documents under the checkout's home; build it if it cannot be served."""
    folder = checkout.home / "bench" / (f"{name}-{model().digest[:8]}" if checkout is OURS else name)
    if not checkout.can_serve(folder):
        folder.mkdir(parents=True, exist_ok=True)
        source, lines = folder / "source.jsonl", ({"id": id_, "text": text} for id_, text in documents.items() if text)
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        build = ["index", "build", str(source), "--out", str(folder)]
        if not (checkout.run("model", "prepare", "--quiet") and checkout.run(*build)):
            raise NotReady(f"{folder} could not be built: the lines above say why")
    return folder


def model() -> Model:
    """Return the prepared model of the settings."""
    return Model.open(prepared_folder(HOME, Settings.from_environment().model))


@dataclass(frozen=True)
class Running:
    """A running stack: the address of its API, and the process ids of Redis, the API and the workers."""

    url: str
    processes: dict[str, int]


@contextmanager
def stack(
    indexes: Mapping[str, Path] | None = None,
    workers: int = 1,
    checkout: Checkout = OURS,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Running]:
    """Run `shoal serve` in an empty home, with its own Redis and ports, until the end of the `with`.

    Raises NotReady.
    """
    (HOME / "bench").mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=HOME / "bench", prefix="stack-") as home:
        (checkout.home / "models").mkdir(parents=True, exist_ok=True)
        (Path(home) / "models").symlink_to(checkout.home / "models")
        redis_port = free_port()
        redis_url = f"redis://127.0.0.1:{redis_port}/0"
        settings = Settings(redis_url=redis_url, redis_port=redis_port, port=free_port(), home=home)
        environment = {"SHOAL_LOG_LEVEL": "warning", **os.environ, **checkout.environment, **environment}
        environment |= {"SHOAL_REDIS_URL": settings.redis_url, "SHOAL_PORT": str(settings.port), "SHOAL_HOME": home}
        environment["SHOAL_INDEXES"] = ",".join(f"{name}={folder}" for name, folder in (indexes or {}).items())
        log, url = Path(home) / "stack.log", f"http://127.0.0.1:{settings.port}"
        serve = logged([*checkout.shoal, "serve", "--workers", str(workers)], log)
        services = [Service("redis", embedded.command(settings), {}), Service("serve", serve, environment, 90.0)]
        with started(services, log, lambda: is_ready(url, workers)):
            pids = {each.name: each.process.pid for each in services if each.process}
            yield Running(url, pids | named(psutil.Process(pids.pop("serve")).children()))


def named(children: Sequence[psutil.Process]) -> dict[str, int]:
    """Return the process ids of the children of `shoal serve` by name: `api`, `jobs`, `worker 1`, `worker 2` ..."""
    found = [(child.cmdline()[-1], child.pid) for child in children]
    workers = (pid for name, pid in found if name == "worker")
    others = {name: pid for name, pid in found if name != "worker"}
    return others | {f"worker {number}": pid for number, pid in enumerate(workers, 1)}


def logged(command: list[str], log: Path) -> list[str]:
    """Return a command that runs `command` and appends its output to a file."""
    return ["/bin/sh", "-c", 'exec "$@" >>"$0" 2>&1', str(log), *command]


@contextmanager
def started(services: Sequence[Service], log: Path, is_ready: Callable[[], bool]) -> Iterator[None]:
    """Run the services until the end of the `with` block. The block begins when they are ready.

    Raises NotReady, with the end of the log, if a service ends or takes too long. If `is_ready` raises OSError, the
    services are not ready.
    """

    def is_done() -> bool:
        for service in services:
            if (code := service.exit_code()) is not None:
                raise NotReady(f"{service.name} ended with exit code {code}")
        with suppress(OSError):
            return is_ready()
        return False

    try:
        for service in services:
            service.start()
        try:
            wait_until(services[-1].name, is_done, READY_WITHIN_S)
        except NotReady as error:
            lines = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
            raise NotReady("\n".join([f"{error.message}; the end of {log}:", *lines])) from error
        yield
    finally:
        for service in reversed(services):
            service.stop()


def is_ready(url: str, workers: int) -> bool:
    """Return True if the API counts this number of `workers` as ready. Raises OSError while it does not answer."""
    return int(ask(f"{url}/ready", timeout_s=2)[1]["workers"]) >= workers


def free_port() -> int:
    """Return a free port of loopback, below the ports that the system gives to outgoing connections."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", secrets.choice(range(15_000, 32_000))))
            return int(probe.getsockname()[1])


def ask(url: str, body: Any = None, timeout_s: float = 120.0) -> tuple[HTTPResponse, Any]:
    """Send a GET, or a POST with a body; return the answer and its JSON. Raises OSError for any error."""
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"content-type": "application/json"}), timeout=timeout_s) as response:
        return response, json.load(response)


def about_machine() -> dict[str, str]:
    """Return the processor, cores, memory, versions, and the changed settings."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = psutil.virtual_memory().total / 2**30
    programs = {name: found for name in ("redis-server", "wrk") if (found := shutil.which(name))}
    printed = {
        name: subprocess.run([found, "--version"], capture_output=True, text=True).stdout.split()[:3]
        for name, found in programs.items()
    }
    libraries = {name: version(name) for name in ("shoal", "openvino", "numpy", "redis", "flask", "granian")}
    ours = {name: value for name, value in os.environ.items() if name.startswith("SHOAL_")}
    return {
        "processor": f"{model[1] if model else '?'}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(
            [*(f"{name} {number}" for name, number in libraries.items()), *map(" ".join, printed.values())]
        ),
        "settings": ", ".join(f"{name}={value}" for name, value in sorted(ours.items())) or "as they come",
    }
