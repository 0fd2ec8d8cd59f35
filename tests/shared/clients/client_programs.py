"""Programs that run the lines of docs/compatibility.md with other clients, and the check of the clients' vectors."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from conftest import PATIENCE_S
from numpy.typing import ArrayLike, NDArray
from page import table

#: The page with the lines.
PAGE = "docs/compatibility.md"

#: A function that runs code with these names in the older clients' Python, and returns the code's `found`.
Older = Callable[..., Any]

#: A function that returns Sentence Transformers' vectors of texts.
Reference = Callable[[Sequence[str]], NDArray[np.float32]]

#: Least cosine of two vectors that differ only by rounding.
MIN_COSINE = 0.9999

#: A program that reads code and its names as JSON from standard input, runs the code, and prints its `found`.
PROGRAM = """
import json, sys
code, names = json.load(sys.stdin)
exec(code, names)
print()
print(json.dumps(names["found"], default=lambda rows: rows.tolist()))
"""


def run(python: str, code: str, **names: Any) -> Any:
    """Let a Python run code with these names, and return the code's `found`."""
    command = [python, "-I", "-W", "ignore", "-c", PROGRAM]
    variables = os.environ | {"HF_HUB_OFFLINE": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        command, input=json.dumps([code, names]), env=variables, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # clients print other lines


def lines_of(client: str) -> str:
    """Return the lines that the page has for a client."""
    return "\n".join(re.findall(r"`([^`]+)`", table(PAGE, "client")[f"`{client}`"][2]))


def check_same(found: ArrayLike, expected: NDArray[np.float32]) -> None:
    """Fail the test unless each row has the direction of the expected row."""
    rows = np.asarray(found, np.float32)
    assert rows.shape == expected.shape
    cosines = (rows * expected).sum(-1) / np.linalg.norm(rows, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert cosines.min() >= MIN_COSINE
