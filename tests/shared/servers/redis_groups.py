"""Groups of Redis servers for tests: a primary that Sentinels watch, and a cluster."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from chaos_run.redis_group import RedisGroup
from conftest import free_port

from shoal.contract.keys import Keys


class RunningGroup(RedisGroup):
    """A group of running servers. Each server can be killed and started again."""

    def __init__(self, kind: str, folder: Path):
        super().__init__(kind, folder, Keys().root, free_port)
        self.commands_by_name = self.commands()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start a server."""
        self._processes[name] = subprocess.Popen(self.commands_by_name[name], stdout=subprocess.DEVNULL)

    def kill(self, name: str) -> None:
        """Kill a server; its data stays on disk."""
        self._processes[name].kill()
        self._processes[name].wait()


@contextmanager
def running_group(kind: str, folder: Path) -> Iterator[RunningGroup]:
    """Run a group of servers while the context lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    group = RunningGroup(kind, folder)
    with ExitStack() as stack:
        for name in reversed(group.commands_by_name):
            group.start(name)
            stack.callback(group.kill, name)
        group.form()
        yield group
