"""The rooms of the code: their imports and sizes, the modules that may import libraries, and the light client."""

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from conftest import TESTS

ROOT = TESTS.parent
FOLDERS = {"shoal": "shared", "shoal_api": "api", "shoal_workers": "workers"}

MAX_LINES = 50

#: Subpackages that belong to the room around them.
PARTS = {
    *("shoal.contract", "shoal.operations", "shoal.process"),
    *("shoal_api.answers", "shoal_api.long_jobs", "shoal_api.pool"),
    *("shoal_workers.model.heads", "shoal_workers.encoding.engines"),
}

#: Modules that import more rooms than their neighbours, or are imported by more. Each is a room of its own.
SINGLE_MODULES = {
    *("shoal.__main__", "shoal_api.pool.pool_state", "shoal_api.context"),
    *("shoal_api.errors", "shoal_api.enqueue", "shoal_api.long_jobs.long_job", "shoal_api.app"),
    *("shoal_api.server.server", "shoal_api.cli", "shoal_workers.process.processors", "shoal_workers.index.long_jobs"),
}

HEAVY = {"torch", "flask", "rq", "safetensors", "openvino", "sentence_transformers", "tokenizers", "transformers"}

#: The only rooms and modules that may import each of these libraries.
HOMES = {
    "msgpack": {"shoal.contract"},
    "redis": {"shoal.broker", "shoal_workers.index.engines.redis"},
    "psycopg": {"shoal_workers.index.engines.pgvector"},
    "lancedb": {"shoal_workers.index.engines.lancedb"},
    "qdrant_client": {"shoal_workers.index.engines.qdrant"},
    "fsspec": {"shoal_workers.index.store.store"},
    "httpx2": {"shoal.client.http.session"},
    "rq": {"shoal.long_jobs.rq_job", "shoal_workers.long_jobs"},
    "opentelemetry": {"shoal.process.tracing"},
    "Stemmer": {"shoal_workers.index.lexical.analyzer"},
    "numkong": {"shoal_workers.index.vectors.upper_bounds"},
    "openvino": {"shoal_workers.encoding.engines", "shoal_workers.model"},
    "torch": {"shoal_workers.encoding.engines.torch"},
    "safetensors": {"shoal_workers.encoding.engines.int8", "shoal_workers.model"},
    "tokenizers": {"shoal_workers.encoding.tokenizer", "shoal_workers.model"},
    "pyarrow": {
        "shoal.bulk.part_file",
        "shoal.records",
        "shoal_workers.index.engines.lancedb",
    },
    "pypdf": {"shoal.extraction.file_formats"},
    "selectolax": {"shoal.extraction.file_formats"},
    "huggingface_hub": {"shoal_workers.model.download"},
    "threadpoolctl": {"shoal_workers.service.service"},
    "flask": {"shoal_api"},
    "flask_cors": {"shoal_api.access.cors"},
    "flask_openapi3": {"shoal_api"},
    "granian": {"shoal_api.server.rsgi", "shoal_api.server.server"},
    "limits": {"shoal_api.access.rate_limit"},
    "orjson": {"shoal_api.request", "shoal_api.answers.response"},
    "prometheus_client": {"shoal_api.routes.service", "shoal_api.metrics.metrics"},
    "pydantic": {"shoal_api.schema", "shoal_api.protocols", "shoal_api.validation"},
    "werkzeug": {"shoal_api"},
}


@cache
def modules() -> dict[str, Path]:
    """Return the file of each module by its name."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in (ROOT / folder / package).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def imported(module: str) -> frozenset[str]:
    """Return the names of the modules and libraries that a module imports, except imports only for types."""
    found: set[str] = set()
    tree = ast.parse(modules()[module].read_text())
    for_types = {node for block in ast.walk(tree) if _is_for_types(block) for node in ast.walk(block)}
    for node in set(ast.walk(tree)) - for_types:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & modules().keys()) or {node.module}
    return frozenset(found)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def rooms() -> frozenset[str]:
    """Return the names of the rooms: subpackages, the loose modules of a package, and single modules."""
    return frozenset({name for name, path in modules().items() if path.name == "__init__.py"} - PARTS | SINGLE_MODULES)


def room_of(module: str) -> str:
    """Return the room of a module: the longest room name with which the module's name begins."""
    return max((room for room in rooms() if f"{module}.".startswith(f"{room}.")), key=len)


def imported_rooms(room: str) -> set[str]:
    """Return the other rooms that the modules of a room import."""
    names = {name for module in modules() if room_of(module) == room for name in imported(module)}
    return {room_of(name) for name in names if name.partition(".")[0] in FOLDERS} - {room}


def stands_in(module: str, home: str) -> bool:
    """Return True if a module is `home` or is in `home`."""
    return f"{module}.".startswith(f"{home}.")


def test_no_room_imports_itself_through_others_and_none_another_package_than_shoal() -> None:
    assert modules().keys() >= SINGLE_MODULES | PARTS
    edges = {room: imported_rooms(room) for room in rooms()}
    TopologicalSorter(edges).prepare()  # raises CycleError
    for room, others in edges.items():
        assert {other.partition(".")[0] for other in others} <= {"shoal", room.partition(".")[0]}, room


def test_each_room_names_the_rooms_that_it_imports() -> None:
    for room in rooms():
        if "." not in room or modules()[room].name != "__init__.py":
            continue
        text = ast.get_docstring(ast.parse(modules()[room].read_text())) or ""
        assert "mport" in text, room
        for other in imported_rooms(room):
            names = [part for part in other.split(".")[1:] if part not in room.split(".")] or other.split(".")[-1:]
            assert "." not in other or any(re.search(rf"\b{name}\b", text) for name in names), (room, other)


def test_no_folder_has_over_14_modules_and_no_function_over_50_lines() -> None:
    folders = (*FOLDERS.values(), "scripts", "tests")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = Counter(path.parent for path in paths if path.name != "__init__.py")
    assert {path: number for path, number in found.items() if number > 14} == {}
    nodes = [(path, node) for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    functions = [(path, node) for path, node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert len(functions) > 1_000
    long = [f"{path}:{node.lineno}" for path, node in functions if (node.end_lineno or 0) - node.lineno >= MAX_LINES]
    assert long == []


def test_each_library_is_imported_in_all_of_its_homes_and_nowhere_else() -> None:
    for library, homes in HOMES.items():
        users = {one for one in modules() if library in {name.partition(".")[0] for name in imported(one)}}
        assert {user for user in users if not any(stands_in(user, home) for home in homes)} == set(), library
        assert {home for home in homes if not any(stands_in(user, home) for user in users)} == set(), library


#: A program that completes a word of each of three commands, like a shell.
COMPLETE = """
import contextlib, io, os
from shoal.cli.main import main
for words in ("shoal s", "shoal index b", "shoal job w"):
    os.environ |= {"_SHOAL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())), contextlib.suppress(SystemExit):
        main(prog_name="shoal")
"""


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("from shoal import *; import shoal.client.redis.client", HEAVY),
        ("from shoal import HttpClient; HttpClient()", HEAVY | {"redis", "click"}),
        ("import shoal.cli.main", HEAVY | {"numpy", "redis", "msgpack"}),
        (COMPLETE, {"numpy", "redis", "msgpack", "rq"}),
        ("import shoal_api.app, shoal_api.server.server", HEAVY - {"flask"}),
        (
            "import shoal_workers.service.service, shoal_workers.encoding.engines.openvino\n"
            "import shoal_workers.index.build.builder",
            {"torch", "sentence_transformers", "transformers", "flask"},
        ),
    ],
)
def test_light_modules_load_no_heavy_libraries(statement: str, absent: set[str]) -> None:
    script = f"{statement}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert absent & {*done.stdout.split()} == set()


def test_every_public_name_can_be_imported_with_its_type() -> None:
    shoal = importlib.import_module("shoal")
    assert all(getattr(shoal, name).__name__ == name for name in shoal.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nobody'"):
        _ = shoal.Nobody
    assert all((modules()[package].parent / "py.typed").exists() for package in ("shoal", "shoal_workers"))
