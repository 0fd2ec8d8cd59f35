"""A program that runs JavaScript: the system's node, or the one that playwright brings."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest


def _find_node() -> str:
    """Return the path of node, or an empty word where there is none."""
    found = find_spec("playwright")
    driver = Path(found.origin).with_name("driver") if found and found.origin else None
    return shutil.which("node") or shutil.which("node", path=driver) or ""


NODE = _find_node()

needs_node = pytest.mark.skipif(not NODE, reason="there is no node, and no playwright that brings one")
