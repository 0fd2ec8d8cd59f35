"""Plants the faults of mutants.toml in a copy of the code, one at a time, and checks that their tests notice them.

It replaces mutmut and cosmic-ray: they change no Lua, and half of their random faults break no promise. Each run is a
fork of a process that has imported the libraries. A run that takes far longer than its tests on the unchanged code has
noticed the fault.
"""

import argparse
import json
import re
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from mutation_tree import NO_TESTS, PASSED, TOO_LONG, Tree

ROOT = Path(__file__).parent.parent

#: Seconds for which a test waits for an event: with a fault, and without one.
PATIENCE_S, USUAL_PATIENCE_S = 5.0, 60.0

#: Longest time of a run: this factor times the time of its tests without the fault, plus these seconds.
MAX_SLOWER, SPARE_S = 2, 15.0


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
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"), help="noticed faults here are not tried")
    return parser.parse_args()


def _run(faults: Sequence[dict[str, Any]], results: Path) -> list[tuple[dict[str, Any], str]]:
    """Return each fault with its outcome; a fault that an earlier run noticed is not tried again."""
    noticed = {json.loads(line)["id"] for line in results.read_text().splitlines()} if results.exists() else set()
    left = [fault for fault in faults if _id(fault) not in noticed]
    outcomes = [(fault, "noticed") for fault in faults if fault not in left]
    if left:
        with Tree.copy(ROOT) as tree, results.open("a") as file:
            seconds = _seconds(tree, sorted({test for fault in left for test in fault["tests"]}))
            for fault in left:
                outcome, by = _try(tree, fault, seconds)
                print(f"{outcome:8}  {fault['file']}: {fault['name']}  ({by})", flush=True)
                outcomes.append((fault, outcome))
                if outcome == "noticed":
                    print(json.dumps({"id": _id(fault), "name": fault["name"], "by": by}), file=file, flush=True)
    return outcomes


def _id(fault: dict[str, Any]) -> str:
    """Return an id for the fault and its tests."""
    return sha256(json.dumps([fault[part] for part in ("file", "old", "new", "tests")]).encode()).hexdigest()[:12]


class _Stopwatch:
    """A plugin of pytest that writes the seconds of each test into a file."""

    def __init__(self, file: Path):
        self._file, self._seconds = file, Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the seconds of the set-up, the call or the end of a test."""
        self._seconds[report.nodeid] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        """Write the seconds of all tests into the file."""
        self._file.write_text(json.dumps(self._seconds))


def _seconds(tree: Tree, tests: Sequence[str]) -> dict[str, float]:
    """Run the tests on the unchanged code; return the seconds of each."""
    file = tree.root.parent / "seconds.json"
    if tree.test(tests, 3_600, USUAL_PATIENCE_S, [_Stopwatch(file)]) != PASSED:
        sys.exit(f"the tests do not pass on the code as it is:\n{tree.log.read_text()[-3_000:]}")
    found: dict[str, float] = json.loads(file.read_text())
    return found


def _try(tree: Tree, fault: dict[str, Any], seconds: dict[str, float]) -> tuple[str, str]:
    """Return the outcome of a fault, and the test that noticed it or another reason."""
    source = (tree.root / fault["file"]).read_text("utf-8")
    if (times := source.count(fault["old"])) != 1:
        return "stale", f"the file has its text {times} times and not once: write it anew"
    usual_s = sum(s for test, s in seconds.items() if {test, test.partition("::")[0]} & {*fault["tests"]})
    started = time.monotonic()
    with tree.changed(fault["file"], source.replace(fault["old"], fault["new"])):
        code = tree.test(fault["tests"], SPARE_S + MAX_SLOWER * usual_s, PATIENCE_S)
    if code in (PASSED, NO_TESTS):
        return "survived", f"{time.monotonic() - started:.1f} s"
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", tree.log.read_text(errors="replace"), re.MULTILINE)
    return "noticed", "time" if code == TOO_LONG else failed[1] if failed else f"exit code {code}"


if __name__ == "__main__":
    main()
