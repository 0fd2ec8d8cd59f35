"""Plants faults in a copy of the code, one at a time, and looks whether the fast part of the tests notices them.

A program of our own: mutmut 3 knows a module by the path of its file, and so finds no test for packages that lie in
folders of other names; cosmic-ray starts a Python for each mutant, of which two thirds of the time would be imports;
and neither changes Lua. Here each run is a fork that has the libraries imported, and runs the tests that call the
changed function, the quickest first. A run that takes far longer than these tests did has noticed the fault.
"""

import argparse
import json
import re
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from mutation_run.calls import CallRecorder, tests_of
from mutation_run.mutant import Mutant, StaleFault, mutants_of, planted
from mutation_run.tree import NO_TESTS, PASSED, TOO_LONG, Tree

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "scripts/mutants.md"

#: Time for which tests of a mutant wait for an event, instead of minutes.
PATIENCE_S = 5.0

#: A run may take this many times as long as its tests without the mutant, plus this many seconds.
MAX_SLOWER, SPARE_S = 2, 15.0

#: Least share of the faults which change behaviour that the tests are to notice.
MIN_SHARE = 0.95


def main() -> None:
    """Print a table; exit code 1 if a survivor is not on the page, if a fault is stale, or if too few are noticed."""
    args = _arguments()
    plan = tomllib.loads((ROOT / "scripts/mutants.toml").read_text("utf-8"))
    judged, problems = _judged(), []
    mutants: list[Mutant] = []
    for fault in plan["fault"]:
        try:
            mutants.append(planted(ROOT, fault))
        except StaleFault as error:
            problems.append(f"stale: {error}")
    drawn = sorted((m for path in plan["modules"] for m in mutants_of(ROOT, path)), key=lambda m: _lot(args.seed, m))
    changes = {mutant.change for mutant in [*mutants, *drawn]}
    problems += [f"stale: {PAGE.name} judges a mutant that there is not: {change}" for change in judged - changes]
    chosen = [m for m in [*mutants, *([] if args.by_hand else drawn[: args.count])] if _is_named(m, args.names)]
    results = _run(chosen, plan["modules"], args.results)
    problems += _report(chosen, results, judged)
    sys.exit("\n".join(problems) or 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the paths of the files to change")
    parser.add_argument("--seed", type=int, default=1, help="draws the mutants")
    parser.add_argument("--count", type=int, default=280, help="how many are drawn, beside those made by hand")
    parser.add_argument("--by-hand", action="store_true", help="only those made by hand")
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"), help="noticed faults here are not tried")
    return parser.parse_args()


def _is_named(mutant: Mutant, names: Iterable[str]) -> bool:
    return not names or any(name in mutant.path for name in names)


def _lot(seed: int, mutant: Mutant) -> bytes:
    """Return a number drawn for the mutant: the same one whatever else is in the code."""
    return sha256(f"{seed} {mutant.id}".encode()).digest()


def _judged() -> set[tuple[str, str, str, str]]:
    """Return the survivors that the page has a reason for, as `Mutant.change` tells them."""
    rows = [line.split(" | ") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    cells = [[cell.strip("|` ").replace("\\|", "|") for cell in row[:4]] for row in rows]
    return {(path, function, old, new) for path, function, old, new in cells}


def _run(mutants: list[Mutant], files: dict[str, list[str]], results_file: Path) -> dict[str, dict[str, Any]]:
    """Return the result of each mutant by its id; a fault that was noticed in an earlier run is not tried again."""
    lines = results_file.read_text().splitlines() if results_file.exists() else []
    known = {result["id"]: result for result in map(json.loads, lines)}
    left = [mutant for mutant in mutants if known.get(mutant.id, {}).get("outcome", "survived") == "survived"]
    if left:
        with Tree.copy(ROOT) as tree, results_file.open("a") as results:
            calls = _record_calls(tree, left, files)
            for mutant, result in _try_all(tree, calls, left, files):
                known[mutant.id] = result
                print(json.dumps(result), file=results, flush=True)
                place = f"{mutant.path}:{mutant.line} {mutant.function}: {mutant.old} -> {mutant.new}"
                print(f"{result['outcome']:10} {result['seconds']:5.1f} s  {place}  ({result['by']})", flush=True)
    return known


def _record_calls(tree: Tree, mutants: list[Mutant], files: dict[str, list[str]]) -> dict[str, Any]:
    """Run the tests on the code as it is; return what each calls, by its name."""
    paths = {mutant.path for mutant in mutants}
    tests = {test for mutant in mutants for test in mutant.tests}
    tests |= {test for path in paths & files.keys() for test in files[path]}
    file = tree.root.parent / "calls.json"
    code = tree.test(sorted(tests), 3_600, PATIENCE_S, [CallRecorder(tree.root, paths, file)])
    if code != PASSED:
        sys.exit(f"the tests do not pass on the code as it is:\n{tree.log.read_text()[-3_000:]}")
    recorded: dict[str, Any] = json.loads(file.read_text())
    return recorded


def _try_all(
    tree: Tree, calls: dict[str, Any], mutants: list[Mutant], files: dict[str, list[str]]
) -> Iterator[tuple[Mutant, dict[str, Any]]]:
    for mutant in mutants:
        tests = mutant.tests or tests_of(calls, mutant.path, mutant.first_line, files[mutant.path])
        run = [test for test in calls if not {test, test.partition("::")[0]}.isdisjoint(tests)]
        seconds = sum(calls[test]["seconds"] for test in run)
        started = time.monotonic()
        with tree.changed(mutant.path, mutant.source):
            code = tree.test(tests, SPARE_S + MAX_SLOWER * seconds, PATIENCE_S)
        outcome = "survived" if code in (PASSED, NO_TESTS) else "noticed"
        result: dict[str, Any] = {"id": mutant.id, "outcome": outcome}
        result |= {"by": _noticed_by(tree, code), "line": mutant.line, "change": mutant.change}
        yield mutant, result | {"seconds": round(time.monotonic() - started, 1), "tests": len(run)}


def _noticed_by(tree: Tree, code: int) -> str:
    """Return the test that failed, or what else happened."""
    if code in (PASSED, NO_TESTS):
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", tree.log.read_text(errors="replace"), re.MULTILINE)
    return "time" if code == TOO_LONG else failed[1] if failed else f"exit code {code}"


def _report(mutants: list[Mutant], results: dict[str, dict[str, Any]], judged: set[Any]) -> list[str]:
    """Print the table of the run; return what is wrong."""
    counts: dict[str, Counter[str]] = {}
    problems = []
    for mutant in mutants:
        outcome = results[mutant.id]["outcome"]
        if outcome == "survived" and mutant.change in judged:
            outcome = "judged"
        elif outcome == "survived":
            problems.append(f"survived: {mutant.path}:{mutant.line} {mutant.function}: {mutant.old} -> {mutant.new}")
        counts.setdefault(mutant.path, Counter())[outcome] += 1
    print("| file | mutants | noticed | of no consequence | survived |\n|---|---|---|---|---|")
    total: Counter[str] = sum(counts.values(), Counter())
    for path, found in [*sorted(counts.items()), ("all", total)]:
        print(f"| {path} | {found.total()} | {found['noticed']} | {found['judged']} | {found['survived']} |")
    if total["noticed"] < MIN_SHARE * (total["noticed"] + total["survived"]):
        problems.append(f"fewer than {MIN_SHARE:.0%} of the faults that change behaviour were noticed")
    return problems


if __name__ == "__main__":
    main()
