"""The rooms of the code: the imports of each, the homes of the libraries, and the lightness of the client."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from conftest import TESTS

ROOT = TESTS.parent
FOLDERS = {"shoal": "shared", "shoal_api": "api", "shoal_workers": "workers"}

#: The other rooms that each room imports. A room is a subpackage, the loose modules of a package, or one module that is
#: named here because it imports more than its neighbours. Each comes after all that it imports.
ROOMS: dict[str, set[str]] = {
    "shoal": set(),
    "shoal.broker": {"shoal"},
    "shoal.queue": {"shoal", "shoal.broker"},
    "shoal.cache": {"shoal", "shoal.broker", "shoal.queue"},
    "shoal.long_jobs": {"shoal", "shoal.broker"},
    "shoal.extraction": {"shoal"},
    "shoal.records": {"shoal", "shoal.extraction"},
    "shoal.changes": {"shoal", "shoal.broker", "shoal.records"},
    "shoal.client": {"shoal", "shoal.queue", "shoal.long_jobs", "shoal.records"},
    "shoal.client.redis": {
        "shoal",
        "shoal.broker",
        "shoal.queue",
        "shoal.cache",
        "shoal.long_jobs",
        "shoal.records",
        "shoal.changes",
        "shoal.client",
    },
    "shoal.client.http": {"shoal", "shoal.long_jobs", "shoal.records", "shoal.changes", "shoal.client"},
    "shoal.evaluation": {"shoal", "shoal.records"},
    "shoal.bulk": {"shoal", "shoal.queue", "shoal.records", "shoal.client.redis"},
    "shoal.supervisor": {"shoal", "shoal.broker", "shoal.queue", "shoal.client.redis"},
    "shoal.viewers": {"shoal", "shoal.queue"},
    "shoal.cli": {
        "shoal",
        "shoal.queue",
        "shoal.long_jobs",
        "shoal.records",
        "shoal.client",
        "shoal.client.redis",
        "shoal.client.http",
        "shoal.evaluation",
        "shoal.bulk",
        "shoal.supervisor",
        "shoal.viewers",
    },
    "shoal.__main__": {"shoal.cli"},
    "shoal_api": {"shoal"},
    "shoal_api.schema": {"shoal", "shoal_api"},
    "shoal_api.access": {"shoal", "shoal.broker", "shoal_api"},
    "shoal_api.metrics": {"shoal", "shoal.queue", "shoal.viewers", "shoal.client.redis"},
    "shoal_api.server": {"shoal", "shoal_api"},
    "shoal_api.viewers.pool_state": {"shoal", "shoal.client.redis", "shoal.viewers"},
    "shoal_api.context": {
        "shoal",
        "shoal.long_jobs",
        "shoal.client.redis",
        "shoal_api",
        "shoal_api.access",
        "shoal_api.metrics",
        "shoal_api.server",
        "shoal_api.viewers.pool_state",
    },
    "shoal_api.errors": {"shoal", "shoal_api", "shoal_api.schema", "shoal_api.context"},
    "shoal_api.viewers.event_stream": {"shoal", "shoal_api", "shoal_api.context"},
    "shoal_api.enqueue": {
        "shoal",
        "shoal.queue",
        "shoal.client",
        "shoal.client.redis",
        "shoal_api",
        "shoal_api.access",
        "shoal_api.context",
    },
    "shoal_api.long_jobs.long_job": {
        "shoal",
        "shoal.long_jobs",
        "shoal.client",
        "shoal_api",
        "shoal_api.schema",
        "shoal_api.context",
    },
    "shoal_api.routes": {
        "shoal",
        "shoal.queue",
        "shoal.long_jobs",
        "shoal.bulk",
        "shoal_api",
        "shoal_api.schema",
        "shoal_api.access",
        "shoal_api.metrics",
        "shoal.viewers",
        "shoal_api.context",
        "shoal_api.viewers.event_stream",
        "shoal_api.enqueue",
        "shoal_api.long_jobs.long_job",
    },
    "shoal_api.protocols": {
        "shoal",
        "shoal_api",
        "shoal_api.schema",
        "shoal_api.context",
        "shoal_api.enqueue",
        "shoal_api.routes",
    },
    "shoal_api.app": {
        "shoal",
        "shoal.client.redis",
        "shoal_api",
        "shoal_api.schema",
        "shoal_api.access",
        "shoal_api.metrics",
        "shoal_api.server",
        "shoal_api.viewers.pool_state",
        "shoal_api.context",
        "shoal_api.errors",
        "shoal_api.routes",
        "shoal_api.protocols",
    },
    "shoal_api.server.server": {"shoal", "shoal_api.access", "shoal_api.server", "shoal_api.context", "shoal_api.app"},
    "shoal_api.cli": {"shoal", "shoal.cli", "shoal_api.access", "shoal_api.server.server"},
    "shoal_workers.process.processors": set(),
    "shoal_workers.model": {"shoal"},
    "shoal_workers.avx512": {"shoal_workers.process.processors", "shoal_workers.model"},
    "shoal_workers.encoding": {
        "shoal",
        "shoal_workers.process.processors",
        "shoal_workers.model",
        "shoal_workers.avx512",
    },
    "shoal_workers.index.files": {"shoal", "shoal.changes"},
    "shoal_workers.index.lexical": {"shoal", "shoal_workers.index.files"},
    "shoal_workers.process": {"shoal", "shoal.broker", "shoal.queue", "shoal_workers.process.processors"},
    "shoal_workers.index.vectors": {"shoal", "shoal_workers.index.files"},
    "shoal_workers.index.search": {
        "shoal",
        "shoal.changes",
        "shoal_workers.index.files",
        "shoal_workers.index.lexical",
        "shoal_workers.index.vectors",
    },
    "shoal_workers.index": {
        "shoal",
        "shoal_workers.model",
        "shoal_workers.index.files",
        "shoal_workers.index.lexical",
        "shoal_workers.index.vectors",
        "shoal_workers.index.search",
    },
    "shoal_workers.index.build": {
        "shoal",
        "shoal.records",
        "shoal.changes",
        "shoal.client.redis",
        "shoal.bulk",
        "shoal_workers.model",
        "shoal_workers.encoding",
        "shoal_workers.index.files",
        "shoal_workers.index.lexical",
        "shoal_workers.index.vectors",
        "shoal_workers.index",
    },
    "shoal_workers.index.store": {"shoal", "shoal_workers.index.files", "shoal_workers.index"},
    "shoal_workers.index.serving": {
        "shoal",
        "shoal.changes",
        "shoal_workers.model",
        "shoal_workers.index.files",
        "shoal_workers.index.vectors",
        "shoal_workers.index.search",
        "shoal_workers.index",
        "shoal_workers.index.store",
    },
    "shoal_workers.index.long_tasks": {
        "shoal",
        "shoal.records",
        "shoal.changes",
        "shoal.client.redis",
        "shoal_workers.index.files",
        "shoal_workers.index",
        "shoal_workers.index.build",
    },
    "shoal_workers.long_jobs": {
        "shoal",
        "shoal.broker",
        "shoal.long_jobs",
        "shoal.client.redis",
        "shoal.bulk",
        "shoal_workers.index.build",
        "shoal_workers.index.store",
        "shoal_workers.index.long_tasks",
    },
    "shoal_workers.operations": {
        "shoal",
        "shoal.queue",
        "shoal.cache",
        "shoal_workers.encoding",
        "shoal_workers.process",
        "shoal_workers.index.vectors",
        "shoal_workers.index",
        "shoal_workers.index.serving",
    },
    "shoal_workers.loop": {
        "shoal",
        "shoal.broker",
        "shoal.queue",
        "shoal.cache",
        "shoal_workers.encoding",
        "shoal_workers.process",
        "shoal_workers.operations",
    },
    "shoal_workers.service": {
        "shoal",
        "shoal.broker",
        "shoal.queue",
        "shoal.cache",
        "shoal.changes",
        "shoal_workers.process.processors",
        "shoal_workers.model",
        "shoal_workers.encoding",
        "shoal_workers.process",
        "shoal_workers.index.store",
        "shoal_workers.index.serving",
        "shoal_workers.loop",
    },
    "shoal_workers": {
        "shoal",
        "shoal.records",
        "shoal.client",
        "shoal.client.redis",
        "shoal.cli",
        "shoal_workers.process.processors",
        "shoal_workers.model",
        "shoal_workers.index.files",
        "shoal_workers.index",
        "shoal_workers.index.build",
        "shoal_workers.index.store",
        "shoal_workers.index.long_tasks",
        "shoal_workers.long_jobs",
        "shoal_workers.service",
    },
}

#: Subpackages that are parts of the room around them.
PARTS = {
    "shoal.contract",
    "shoal.operations",
    "shoal.process",
    "shoal_api.answers",
    "shoal_api.long_jobs",
    "shoal_api.viewers",
}

HEAVY = {"torch", "flask", "rq", "safetensors", "openvino", "sentence_transformers", "tokenizers", "transformers"}

#: The rooms and modules that may import each library of one purpose.
HOMES = {
    "msgpack": {"shoal.contract.wire", "shoal.contract.outline"},
    "redis": {"shoal.broker"},
    "fsspec": {"shoal.records.source_file", "shoal_workers.index.store.store"},
    "backports": {"shoal.records.text_records"},
    "httpx2": {"shoal.client.http.session"},
    "rq": {
        "shoal.long_jobs.rq_job",
        "shoal.long_jobs.rq_jobs",
        "shoal_workers.long_jobs.maintenance",
        "shoal_workers.long_jobs.progress_log",
        "shoal_workers.long_jobs.rq_worker",
        "shoal_workers.long_jobs.runnable_job",
        "shoal_workers.long_jobs.runner",
        "shoal_workers.long_jobs.schedules",
    },
    "opentelemetry": {"shoal.process.spans"},
    "rich": {"shoal.cli.pool_screen"},
    "Stemmer": {"shoal_workers.index.lexical.analyzer"},
    "numkong": {"shoal_workers.index.vectors.upper_bounds"},
    "openvino": {
        "shoal_workers.encoding.engines.int8",
        "shoal_workers.encoding.engines.openvino",
        "shoal_workers.model.export",
        "shoal_workers.model.graph",
        "shoal_workers.model.own_graph",
        "shoal_workers.model.prepare",
    },
    "torch": {
        "shoal_workers.encoding.engines.torch",
        "shoal_workers.model.export",
    },
    "sentence_transformers": {"shoal_workers.model.export", "shoal_workers.model.reference"},
    "safetensors": {
        "shoal.cli.embed",
        "shoal_api.answers.vector_format",
        "shoal_workers.encoding.engines.int8",
        "shoal_workers.model",
    },
    "tokenizers": {"shoal_workers.encoding.tokenizer", "shoal_workers.model.prepare"},
    "pyarrow": {"shoal_api.answers.vector_format", "shoal.bulk.part_file", "shoal.records"},
    "pypdf": {"shoal.extraction.file_formats"},
    "selectolax": {"shoal.extraction.file_formats"},
    "huggingface_hub": {"shoal_workers.model.source"},
    "threadpoolctl": {"shoal_workers.service.service"},
    "flask": {"shoal_api"},
    "flask_cors": {"shoal_api.access.cors"},
    "flask_openapi3": {"shoal_api"},
    "granian": {"shoal_api.server.rsgi", "shoal_api.server.server"},
    "limits": {"shoal_api.access.rate_limit"},
    "orjson": {"shoal_api.request", "shoal_api.answers.response"},
    "prometheus_client": {
        "shoal_api.routes.service",
        "shoal_api.metrics.metrics",
        "shoal_api.metrics.pool",
        "shoal_api.metrics.processes",
        "shoal_api.metrics.tei",
    },
    "pydantic": {"shoal_api.schema", "shoal_api.protocols", "shoal_api.blueprint"},
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
    """Return the names of the modules and libraries that a module imports, anywhere in it but for types alone."""
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


def room_of(module: str) -> str:
    """Return the room of a module: the longest of the names that it begins with."""
    return max((room for room in ROOMS if f"{module}.".startswith(f"{room}.")), key=len)


def imported_rooms(room: str) -> Iterator[tuple[str, str]]:
    """Yield each module of a room with each other room that it imports."""
    for module in modules():
        if room_of(module) == room:
            found = {room_of(name) for name in imported(module) if name.partition(".")[0] in FOLDERS}
            yield from ((module, other) for other in sorted(found - {room}))


SUBPACKAGES = sorted(name for name, path in modules().items() if path.name == "__init__.py" and name in ROOMS)


def users(library: str) -> set[str]:
    """Return the modules that import a library."""
    return {module for module in modules() if library in {name.partition(".")[0] for name in imported(module)}}


def stands_in(module: str, home: str) -> bool:
    """Return True if a module is `home` or stands in it."""
    return f"{module}.".startswith(f"{home}.")


def loaded_after(statement: str) -> set[str]:
    """Return the packages that a fresh interpreter has loaded after the statement."""
    script = (
        f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


class TestRooms:
    @pytest.mark.parametrize("room", ROOMS)
    def test_each_imports_only_the_rooms_that_it_may(self, room: str) -> None:
        assert [edge for edge in imported_rooms(room) if edge[1] not in ROOMS[room]] == []

    @pytest.mark.parametrize("room", SUBPACKAGES)
    def test_what_each_may_import_it_does(self, room: str) -> None:
        assert {other for _, other in imported_rooms(room)} == ROOMS[room]

    def test_there_are_no_cycles(self) -> None:
        names = list(ROOMS)
        assert [room for n, room in enumerate(names) if not ROOMS[room] <= set(names[:n])] == []

    def test_imports_never_go_across(self) -> None:
        for room, others in ROOMS.items():
            own = {"shoal", room.partition(".")[0]}
            assert {other.partition(".")[0] for other in others} <= own, room

    def test_every_subpackage_is_a_room_and_every_room_exists(self) -> None:
        subpackages = {name for name, path in modules().items() if path.name == "__init__.py" and name.count(".") < 2}
        assert subpackages - PARTS <= ROOMS.keys() <= modules().keys()

    @pytest.mark.parametrize("folder", FOLDERS.values())
    def test_no_folder_has_over_14_modules(self, folder: str) -> None:
        found = Counter(path.parent for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py")
        assert {path: number for path, number in found.items() if number > 14} == {}

    @pytest.mark.parametrize("room", [room for room in SUBPACKAGES if "." in room])
    def test_each_names_the_others_that_it_may_import(self, room: str) -> None:
        text = ast.get_docstring(ast.parse(modules()[room].read_text())) or ""
        assert "mport" in text
        others = {other: other.split(".")[1:] for other in ROOMS[room] if "." in other}
        own = set(room.split("."))
        names = {other: [part for part in parts if part not in own] or parts[-1:] for other, parts in others.items()}
        assert [other for other in names if not any(re.search(rf"\b{name}\b", text) for name in names[other])] == []


class TestLibraries:
    @pytest.mark.parametrize("library", HOMES)
    def test_each_is_imported_in_its_homes_alone(self, library: str) -> None:
        strangers = {user for user in users(library) if not any(stands_in(user, home) for home in HOMES[library])}
        assert strangers == set()

    @pytest.mark.parametrize("library", HOMES)
    def test_each_home_imports_it(self, library: str) -> None:
        empty = {home for home in HOMES[library] if not any(stands_in(user, home) for user in users(library))}
        assert empty == set()

    def test_bucketing_knows_no_tensors_and_no_queue(self) -> None:
        assert {
            name for name in imported("shoal_workers.encoding.bucketing") if name not in sys.stdlib_module_names
        } == ({"collections.abc"})


class TestLoading:
    @pytest.mark.parametrize(
        "statement",
        [
            "import shoal",
            "from shoal import *",
            "import shoal.client.redis.client",
            "from shoal import HttpClient; HttpClient()",
            "import shoal.cli.main",
        ],
    )
    def test_the_light_client_loads_nothing_heavy(self, statement: str) -> None:
        assert not loaded_after(statement) & HEAVY

    def test_the_command_line_loads_neither_numpy_nor_redis_before_a_command_needs_it(self) -> None:
        assert not loaded_after("import shoal.cli.main") & {"numpy", "redis", "msgpack"}

    def test_completing_a_word_loads_neither_numpy_nor_redis(self) -> None:
        for words in ("shoal s", "shoal index b", "shoal job w"):
            variables = {"_SHOAL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
            statement = (
                f"import contextlib, io, os\nfrom shoal.cli.main import main\nos.environ.update({variables!r})\n"
                "with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())), contextlib.suppress(SystemExit):\n"
                " main(prog_name='shoal')"
            )
            assert not loaded_after(statement) & {"numpy", "redis", "msgpack", "rq"}

    def test_the_client_over_http_loads_no_redis(self) -> None:
        assert not loaded_after("from shoal import HttpClient; HttpClient()") & {"redis", "click"}

    def test_the_api_loads_no_model_library(self) -> None:
        assert not loaded_after("import shoal_api.app, shoal_api.server.server") & (HEAVY - {"flask"})

    def test_a_serving_worker_loads_no_torch(self) -> None:
        modules = ("service.service", "encoding.engines.openvino", "index.build.builder")
        statement = "\n".join(f"import shoal_workers.{module}" for module in modules)
        assert not loaded_after(statement) & {"torch", "sentence_transformers", "transformers", "flask"}


def test_every_public_name_can_be_imported() -> None:
    shoal = importlib.import_module("shoal")
    assert all(getattr(shoal, name).__name__ == name for name in shoal.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nobody'"):
        _ = shoal.Nobody


@pytest.mark.parametrize("package", ["shoal", "shoal_workers"])
def test_the_packages_say_that_they_are_typed(package: str) -> None:
    assert (modules()[package].parent / "py.typed").exists()
