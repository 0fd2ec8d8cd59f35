"""The program that runs JavaScript: the system's node, or else playwright's node."""

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest


def _find_node() -> str:
    """Return the path of a node that runs, or "". Playwright's node needs a library that some systems lack."""
    found = find_spec("playwright")
    driver = Path(found.origin).with_name("driver") if found and found.origin else None
    node = shutil.which("node") or shutil.which("node", path=driver) or ""
    runs = node and subprocess.run([node, "--version"], capture_output=True).returncode == 0
    return node if runs else ""


NODE = _find_node()

needs_node = pytest.mark.skipif(not NODE, reason="there is no node that runs: apt install nodejs")
