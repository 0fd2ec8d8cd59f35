"""A record of the functions that each test calls, so that a mutant needs only the tests that come past it."""

import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest


class CallRecorder:
    """A plugin of pytest that writes the functions of some files that each test calls, and the seconds it takes."""

    def __init__(self, root: Path, paths: Iterable[str], file: Path):
        self._names = {str(root / path): path for path in paths}
        self._file = file
        self._codes: dict[int, CodeType] = {}
        self._starts_python = False
        self._found: dict[str, Any] = {}
        sys.addaudithook(self._note_process)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record one test with its fixtures."""
        self._codes, self._starts_python = {}, False
        started = time.perf_counter()
        threading.settrace(self._note)
        sys.settrace(self._note)
        yield
        sys.settrace(None)
        threading.settrace(None)
        names = [(self._names.get(code.co_filename), code.co_firstlineno) for code in self._codes.values()]
        about = {"seconds": time.perf_counter() - started, "calls": [place for place in names if place[0]]}
        self._found[item.nodeid] = about | {"starts_python": self._starts_python}

    def pytest_sessionfinish(self) -> None:
        """Write the record."""
        self._file.write_text(json.dumps(self._found))

    def _note_process(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and Path(str(args[0])).name.startswith(("python", "shoal")):
            self._starts_python = True

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        self._codes[id(frame.f_code)] = frame.f_code


def tests_of(recorded: dict[str, Any], path: str, first_line: int, files: Sequence[str]) -> list[str]:
    """Return the tests of these files that call the function, the quickest first; all of them if none does.

    A test that starts a Python process may call any function there.
    """
    own = [test for test in recorded if test.partition("::")[0] in files]
    calling = [test for test in own if [path, first_line] in recorded[test]["calls"]]
    if calling:
        calling += [test for test in own if recorded[test]["starts_python"] and test not in calling]
    return sorted(calling or own, key=lambda test: float(recorded[test]["seconds"]))
