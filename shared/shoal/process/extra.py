"""The command that installs an extra, for error messages."""

import shlex
import sys
from pathlib import Path

#: The folder above the packages. In a checkout it contains `constraints.txt`, with the tested versions.
_ROOT = Path(__file__).resolve().parents[3]


def install_command(extra: str) -> str:
    """Return the command that installs an extra for this Python; in a checkout, with the tested versions."""
    constraints = _ROOT / "constraints.txt"
    what = ["-c", str(constraints), "-e", f"{_ROOT}[{extra}]"] if constraints.is_file() else [f"shoal[{extra}]"]
    return shlex.join([sys.executable, "-m", "pip", "install", *what])
