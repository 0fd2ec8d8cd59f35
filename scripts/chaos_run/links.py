"""The links between processes and Redis, each of which can be broken by itself."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_PROXY = Path(__file__).parent / "proxy.py"


class Links:
    """The proxy as a process of its own. `ports` has the port of each link by its name."""

    def __init__(self, target_port: int, ports: Mapping[str, int]):
        self.ports = ports
        command = [sys.executable, str(_PROXY), str(target_port), *(f"{name}={port}" for name, port in ports.items())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._wait()

    def order(self, link: str, mode: str, value: float = 0.0) -> None:
        """Breaks a link or mends it; `chaos_run.proxy` has the modes."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"link": link, "mode": mode, "value": value}) + "\n")
        self._process.stdin.flush()
        self._wait()

    def close(self) -> None:
        """Ends it."""
        self._process.communicate()

    def _wait(self) -> None:
        """Returns when the proxy has done what it was told."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise BrokenPipeError(f"the proxy ended with exit code {self._process.wait()}")
