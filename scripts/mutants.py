"""Plants the faults of mutants.toml in a copy of the code, one at a time, and checks that their tests notice them.

mutmut and cosmic-ray are not used: they change no Lua, and half of their random faults break no promise. A fault also
counts as noticed if its tests take longer than `LIMIT_S`.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parent.parent

#: Longest wait of a test for an event, in seconds: with a fault, and without one.
PATIENCE_S, USUAL_PATIENCE_S = 5.0, 60.0

#: Longest time of the tests of one fault, and of all tests on the unchanged code, in seconds.
LIMIT_S, ALL_LIMIT_S = 300.0, 3_600.0


def main() -> None:
    """Print a table; exit code 1 if a fault is not noticed, or no longer fits its file."""
    args = _arguments()
    faults = tomllib.loads((ROOT / "scripts/mutants.toml").read_text("utf-8"))["fault"]
    chosen = [fault for fault in faults if not args.names or any(name in fault["file"] for name in args.names)]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for fault, outcome in _run(chosen, args.results):
        counts[fault["file"]][outcome] += 1
    print("| file | faults | noticed | survived | stale |\n|---|---|---|---|---|")
    for path, found in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        print(f"| {path} | {found.total()} | {found['noticed']} | {found['survived']} | {found['stale']} |")
    sys.exit(any(found["survived"] or found["stale"] for found in counts.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the paths of the files to change")
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"), help="skip the faults noticed here")
    return parser.parse_args()


def _run(faults: Sequence[dict[str, Any]], results: Path) -> list[tuple[dict[str, Any], str]]:
    """Return each fault with its outcome; a fault that an earlier run noticed is not tried again."""
    noticed = {json.loads(line)["id"] for line in results.read_text().splitlines()} if results.exists() else set()
    left = [fault for fault in faults if _id(fault) not in noticed]
    outcomes = [(fault, "noticed") for fault in faults if fault not in left]
    with tempfile.TemporaryDirectory(prefix="shoal-mutants-") as folder, results.open("a") as file:
        tree = _copy(Path(folder, "tree"))
        tests = sorted({test for fault in left for test in fault["tests"]})
        code, printed = _test(tree, tests, ALL_LIMIT_S, USUAL_PATIENCE_S) if left else (pytest.ExitCode.OK, "")
        if code != pytest.ExitCode.OK:
            sys.exit(f"the tests do not pass on the code as it is:\n{printed[-3_000:]}")
        for fault in left:
            outcome, by = _try(tree, fault)
            print(f"{outcome:8}  {fault['file']}: {fault['name']}  ({by})", flush=True)
            outcomes.append((fault, outcome))
            if outcome == "noticed":
                print(json.dumps({"id": _id(fault), "name": fault["name"], "by": by}), file=file, flush=True)
    return outcomes


def _id(fault: dict[str, Any]) -> str:
    """Return an id for the fault and its tests."""
    return sha256(json.dumps([fault[part] for part in ("file", "old", "new", "tests")]).encode()).hexdigest()[:12]


def _copy(tree: Path) -> Path:
    """Copy the repository with its uncommitted changes."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, capture_output=True, check=True, text=True).stdout.split("\0")[:-1]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # the file is deleted, but this is not committed yet
            shutil.copy(ROOT / name, tree / name)
    return tree


def _try(tree: Path, fault: dict[str, Any]) -> tuple[str, str]:
    """Return the outcome of a fault, and the test that noticed it or another reason."""
    file = tree / fault["file"]
    source = file.read_text("utf-8")
    if (times := source.count(fault["old"])) != 1:
        return "stale", f"the file has its text {times} times, not once: write the text anew"
    file.write_text(source.replace(fault["old"], fault["new"]), "utf-8")
    try:
        code, printed = _test(tree, fault["tests"], LIMIT_S, PATIENCE_S)
    finally:
        file.write_text(source, "utf-8")
    if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return "survived", "its tests pass"
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", printed, re.MULTILINE)
    return "noticed", failed[1] if failed else f"exit code {code}"


def _test(tree: Path, tests: Sequence[str], limit_s: float, patience_s: float) -> tuple[int | None, str]:
    """Run the tests until one fails; return the exit code, which is None after `limit_s`, and the output."""
    path = os.pathsep.join(str(tree / package) for package in ("shared", "api", "workers"))
    variables = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TEST_PATIENCE_S": str(patience_s), "CI": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-m", "not wide", "-p", "no:cacheprovider"]
    with tempfile.TemporaryFile("w+") as output:
        pipes: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT}
        run = subprocess.Popen([*command, *tests], cwd=tree, env=os.environ | variables, **pipes)
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = run.wait(limit_s)
        if code is None:
            for process in [*psutil.Process(run.pid).children(recursive=True), run]:
                with suppress(psutil.Error):
                    process.kill()
            run.wait()
        output.seek(0)
        return code, output.read()


if __name__ == "__main__":
    main()
