"""A record of the functions that each test calls, so that a mutant needs only the tests that come past it."""

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import pytest

Place = tuple[str, int]


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


class Calls:
    """The functions that each test calls, as first lines in files, and its seconds.

    A test that starts a Python process may call any function there.
    """

    def __init__(self, found: dict[str, Any]):
        self.seconds = {test: about["seconds"] for test, about in found.items()}
        self._tests: dict[Place, set[str]] = defaultdict(set)
        for test, about in found.items():
            for path, line in about["calls"]:
                self._tests[path, line].add(test)
        self._starting = {test for test, about in found.items() if about["starts_python"]}

    @classmethod
    def read(cls, file: Path) -> Self:
        """Return what a recorder wrote."""
        return cls(json.loads(file.read_text()))

    def tests(self, path: str, first_line: int, files: Sequence[str]) -> list[str]:
        """Return the tests that call the function, those of these files if any do, the quickest first.

        If no test is known to call it, all of the files do look at it.
        """
        own = {test for test in self.seconds if test.partition("::")[0] in files}
        calling = self._tests[path, first_line]
        chosen = own & (calling | self._starting) if calling & own else calling or own
        return sorted(chosen, key=lambda test: self.seconds[test])
