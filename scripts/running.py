"""A stack of its own for benchmarks and quality checks, and the real text they run on."""

import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from urllib.request import Request, urlopen

from shoal.broker import embedded
from shoal.errors import ShoalError
from shoal.settings import Settings
from shoal.supervisor.process import Service
from shoal.supervisor.supervisor import Supervisor
from shoal_workers.index.index import Index
from shoal_workers.model.model import Model, prepared_folder

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(os.environ.get("SHOAL_HOME", "~/.shoal")).expanduser()
DATA = Path(os.environ.get("SHOAL_DATA", ROOT.parent / "shared" / "data"))
SHOAL = [sys.executable, "-m", "shoal"]


def datasets() -> ModuleType:
    """The loaders of the real text in ../shared/data, or of the folder that SHOAL_DATA names."""
    path = DATA / "datasets.py"
    if not path.exists():
        sys.exit(f"there is no {path}: name the folder of the test data with SHOAL_DATA")
    spec = importlib.util.spec_from_file_location("datasets", path)
    if not spec or not spec.loader:
        sys.exit(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def index_of(name: str, documents: dict[str, str]) -> Path:
    """An index of the documents under SHOAL_HOME, built if it is not there or cannot be served."""
    folder = HOME / "bench" / name
    if not can_be_served(folder):
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "source.jsonl"
        source.write_text(
            "".join(json.dumps({"id": id_, "text": text}) + "\n" for id_, text in documents.items() if text)
        )
        command = [*SHOAL, "index", "build", str(source), "--out", str(folder), "--home", str(HOME)]
        subprocess.run(command, check=True)
    return folder


def can_be_served(folder: Path) -> bool:
    """Whether an index is there, whole, and of the model that is served."""
    with suppress(ShoalError):
        Index.open(folder).check_model(model())
        return True
    return False


def model() -> Model:
    """The model that is served, as it was prepared."""
    return Model.open(prepared_folder(HOME, Settings.from_environment().model))


@dataclass(frozen=True)
class Running:
    """A stack that runs: where its API is, and the id of each process that was started."""

    url: str
    settings: Settings
    processes: dict[str, int]


@contextmanager
def stack(
    indexes: dict[str, Path] | None = None,
    workers: int = 1,
    worker_command: list[str] | None = None,
    **environment: str,
) -> Iterator[Running]:
    """Runs what `shoal serve` runs, in an empty home and with a Redis and ports of its own, and stops it.

    Prepared models are those under SHOAL_HOME. `worker_command` runs in place of `shoal worker`.
    """
    (HOME / "bench").mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=HOME / "bench", prefix="stack-") as home:
        (Path(home) / "models").symlink_to(HOME / "models")
        settings = Settings.from_environment(
            {"SHOAL_LOG_LEVEL": "warning"} | os.environ | environment,
            redis_url=f"redis://127.0.0.1:{free_port()}/0",
            port=free_port(),
            home=home,
            workers=workers,
            indexes=",".join(f"{name}={folder}" for name, folder in (indexes or {}).items()),
        )
        stack = Supervisor(settings)
        stack.redis = Service("redis", embedded.command(settings), {})
        for service in stack.services[1:] if worker_command else []:
            service.command = worker_command
        try:
            stack.start()
            services = [*stack.services, stack.redis]
            processes = {service.name: service.process.pid for service in services if service.process}
            yield Running(f"http://127.0.0.1:{settings.port}", settings, processes)
        finally:
            stack.stop()


def free_port() -> int:
    """A port on loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def post(url: str, body: dict[str, Any]) -> Any:
    """The answer to a JSON POST."""
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=120) as response:
        return json.load(response)


def about_machine() -> dict[str, str]:
    """Processor, cores, memory, versions, and the settings that are not the default."""
    model = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), "?"
    )
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    names = ("shoal", "openvino", "numpy", "redis", "flask", "granian")
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in names)]
    server = subprocess.run([embedded.find_server(), "--version"], capture_output=True, text=True, check=True).stdout
    versions.append(f"redis-server {server.split()[2].removeprefix('v=')}")
    if wrk := shutil.which("wrk"):
        versions.append(" ".join(subprocess.run([wrk, "--version"], capture_output=True, text=True).stdout.split()[:2]))
    ours = {name: value for name, value in os.environ.items() if name.startswith("SHOAL_")}
    return {
        "processor": f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "versions": ", ".join(versions),
        "settings": ", ".join(f"{name}={value}" for name, value in sorted(ours.items())) or "as they come",
    }
