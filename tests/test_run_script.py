"""`scripts/run` up to its last command, with a `shoal` that only notes its calls, and nothing to install."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

NOTE = """#!/bin/sh
echo "${SHOAL_INDEXES-none}|$*" >>calls
"""


@pytest.mark.parametrize(
    ("named", "calls"),
    [
        ({}, ["none|index build --out {home}/sample", "{home}/sample|serve --index mine"]),
        ({"SHOAL_INDEXES": "other"}, ["other|serve --index mine"]),
    ],
)
def test_an_index_of_ones_own_takes_the_place_of_the_sample(
    tmp_path: Path, named: dict[str, str], calls: list[str]
) -> None:
    for folder in ("scripts", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/run", tmp_path / "scripts")
    (tmp_path / "scripts/install").touch()
    shoal = tmp_path / ".venv/bin/shoal"
    shoal.write_text(NOTE)
    shoal.chmod(0o755)
    home = tmp_path / "home"
    environment = {"PATH": os.environ["PATH"], "SHOAL_HOME": str(home), **named}
    subprocess.run([tmp_path / "scripts/run", "--index", "mine"], env=environment, check=True)
    noted = (tmp_path / "calls").read_text().splitlines()
    assert noted == [call.format(home=home) for call in calls]
