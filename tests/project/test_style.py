"""Rules of the code's style that a program can check: docstrings begin with a verb or a noun, functions are short."""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import TESTS

ROOT = TESTS.parent
FOLDERS = ("shared", "api", "workers", "scripts", "tests")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
QUESTIONS = {"What", "Whether", "How", "Where", "Who", "Whoever", "Whatever"}
MAX_LINES = 50

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Found(NamedTuple):
    """The places in a file with their docstrings, and those of its functions with their numbers of lines."""

    docstrings: list[tuple[str, str]]
    functions: list[tuple[str, int]]


@cache
def read(path: Path) -> Found:
    """Return what is found in a file, which is parsed once."""
    found = Found([], [])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function | ast.ClassDef | ast.Module) and (text := ast.get_docstring(node)):
            found.docstrings.append((f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", text))
        if isinstance(node, Function) and node.end_lineno:
            found.functions.append((f"{path.relative_to(ROOT)}:{node.lineno}", node.end_lineno - node.lineno + 1))
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_as_a_question_does(folder: str) -> None:
    found = [docstring for path in FILES if path.is_relative_to(ROOT / folder) for docstring in read(path).docstrings]
    assert found
    assert [place for place, text in found if text.split()[0].strip(",:;") in QUESTIONS] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_function_is_long(folder: str) -> None:
    found = [function for path in FILES if path.is_relative_to(ROOT / folder) for function in read(path).functions]
    assert found
    assert [(place, num_lines) for place, num_lines in found if num_lines > MAX_LINES] == []
