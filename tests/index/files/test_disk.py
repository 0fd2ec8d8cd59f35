"""The tests' own disk."""

import os
import subprocess
import sys

import pytest
from disk import ignore_syncs


def test_neither_a_test_nor_a_process_of_it_waits_for_the_disk() -> None:
    if not ignore_syncs():
        pytest.skip("this system skips no calls")
    no_file = 2**30
    os.fsync(no_file)  # an error where it is not skipped
    os.fdatasync(no_file)
    subprocess.run([sys.executable, "-c", f"import os; os.fsync({no_file})"], check=True)
