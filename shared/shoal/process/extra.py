"""The command that installs an extra, for messages."""

import shlex
import sys
from pathlib import Path

#: The folder with the packages; in a checkout it has the versions that Shoal is tested with.
_ROOT = Path(__file__).resolve().parents[3]


def install_command(extra: str) -> str:
    """Return the command that installs an extra for the Python that runs: from a checkout, in the tested versions."""
    constraints = _ROOT / "constraints.txt"
    what = ["-c", str(constraints), "-e", f"{_ROOT}[{extra}]"] if constraints.is_file() else [f"shoal[{extra}]"]
    return shlex.join([sys.executable, "-m", "pip", "install", *what])
