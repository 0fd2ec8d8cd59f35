"""Who may import what: the light client stays light, and each library has its homes."""

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    name: ROOT / folder / name
    for folder, name in (("shared", "shoal"), ("api", "shoal_api"), ("workers", "shoal_workers"))
}

HEAVY = {"torch", "flask", "rq", "safetensors", "openvino", "sentence_transformers", "tokenizers", "transformers"}

#: The files that may import each library of one purpose.
HOMES = {
    "msgpack": {"shoal/wire.py"},
    "redis": {"shoal/broker/", "shoal/queue/queue.py"},
    "torch": {"engines/torch.py", "model/reference.py", "model/prepare.py", "model/graph.py"},
    "sentence_transformers": {"model/reference.py", "model/prepare.py", "model/graph.py"},
    "numkong": {"index/upper_bounds.py"},
    "openvino": {"engines/openvino.py", "engines/int8.py", "model/prepare.py"},
    "tokenizers": {"encoding/tokenizer.py"},
    "flask": {"shoal_api/"},
    "flask_cors": {"access/cors.py"},
    "limits": {"access/rate_limit.py"},
    "safetensors": {"cli/vector_file.py", "model/parity.py", "model/prepare.py"},
}


def files(package: str) -> list[Path]:
    """The package's modules."""
    return sorted(PACKAGES[package].rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Every package that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def modules_after(statement: str) -> set[str]:
    """The packages that a fresh interpreter has loaded after the statement."""
    script = (
        f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "statement", ["import shoal", "from shoal import *", "import shoal.client", "import shoal.cli.main"]
)
def test_the_light_client_loads_nothing_heavy(statement: str) -> None:
    assert not modules_after(statement) & HEAVY


def test_the_command_line_waits_with_numpy_and_redis() -> None:
    assert not modules_after("import shoal.cli.main") & {"numpy", "redis", "msgpack"}


def test_the_api_loads_no_model_library() -> None:
    assert not modules_after("import shoal_api.app, shoal_api.server.server") & (HEAVY - {"flask"})


def test_a_serving_worker_loads_no_torch() -> None:
    statement = (
        "import shoal_workers.process.service, shoal_workers.encoding.engines.openvino, shoal_workers.index.builder"
    )
    assert not modules_after(statement) & {"torch", "sentence_transformers", "transformers", "flask"}


def test_imports_never_go_across() -> None:
    forbidden = {
        "shoal": {"shoal_api", "shoal_workers"},
        "shoal_api": {"shoal_workers"},
        "shoal_workers": {"shoal_api"},
    }
    for package, others in forbidden.items():
        for path in files(package):
            assert not set(imported(path)) & others, path


@pytest.mark.parametrize("library", HOMES)
def test_each_library_has_its_homes(library: str) -> None:
    users = [str(path) for package in PACKAGES for path in files(package) if library in imported(path)]
    strangers = [user for user in users if not any(home in user for home in HOMES[library])]
    assert users
    assert not strangers


def test_every_public_name_can_be_imported() -> None:
    shoal = importlib.import_module("shoal")
    assert all(getattr(shoal, name).__name__ == name for name in shoal.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nobody'"):
        _ = shoal.Nobody


def test_the_batcher_knows_no_tensors_and_no_queue() -> None:
    assert set(imported(PACKAGES["shoal_workers"] / "encoding" / "batcher.py")) <= {
        "collections",
        "dataclasses",
        "itertools",
        "typing",
    }


@pytest.mark.parametrize("package", ["shoal", "shoal_workers"])
def test_the_packages_say_that_they_are_typed(package: str) -> None:
    assert (PACKAGES[package] / "py.typed").exists()
