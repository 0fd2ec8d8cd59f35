"""A stack of its own for benchmarks and quality checks, and the real text they run on."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(os.environ.get("SHOAL_HOME", "~/.shoal")).expanduser()
SHOAL = [sys.executable, "-m", "shoal"]


def datasets() -> ModuleType:
    """The loaders of the real text in ../shared/data, or of the folder that SHOAL_DATA names."""
    path = Path(os.environ.get("SHOAL_DATA", ROOT.parent / "shared" / "data")) / "datasets.py"
    if not path.exists():
        sys.exit(f"there is no {path}: name the folder of the test data with SHOAL_DATA")
    spec = importlib.util.spec_from_file_location("datasets", path)
    if not spec or not spec.loader:
        sys.exit(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def index_of(name: str, documents: dict[str, str]) -> Path:
    """An index of the documents under SHOAL_HOME, built if it is not there."""
    folder = HOME / "bench" / name
    if not (folder / "current").exists():
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "source.jsonl"
        source.write_text(
            "".join(json.dumps({"id": id_, "text": text}) + "\n" for id_, text in documents.items() if text)
        )
        command = [*SHOAL, "index", "build", str(source), "--out", str(folder), "--home", str(HOME)]
        subprocess.run(command, check=True)
    return folder


@contextmanager
def stack(port: int, indexes: dict[str, Path], workers: int = 1, **environment: str) -> Iterator[str]:
    """Runs `shoal serve` with the indexes, yields its address, and stops it."""
    home = HOME / "bench" / "stack"
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "models").exists():
        (home / "models").symlink_to(HOME / "models")
    env = os.environ | {"SHOAL_HOME": str(home)} | environment
    flags = [part for name, folder in indexes.items() for part in ("--index", f"{name}={folder}")]
    command = [*SHOAL, "serve", "--port", str(port), "--workers", str(workers), *flags]
    subprocess.run([*command, "--detach"], check=True, env=env, stdout=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        subprocess.run([*SHOAL, "serve", "--stop"], check=True, env=env, stdout=subprocess.DEVNULL)


def post(url: str, body: dict[str, Any]) -> Any:
    """The answer to a JSON POST."""
    request = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=120) as response:
        return json.load(response)


def about_machine() -> dict[str, str]:
    """Processor, cores, memory and versions."""
    import platform
    from importlib.metadata import version

    model = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), "?"
    )
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    names = ("shoal", "openvino", "numpy", "redis", "flask", "granian")
    versions = " ".join(f"{name} {version(name)}" for name in names)
    return {
        "processor": f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB",
        "versions": f"Python {platform.python_version()} {versions}",
    }
