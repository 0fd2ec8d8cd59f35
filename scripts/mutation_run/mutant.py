"""Mutants: small changes of a source file, made by tables of operators or by hand."""

import ast
from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any


def _table(swapped: str, replaced: str) -> dict[str, str]:
    """Return the word that each word becomes: the other one of a swapped pair, or the second one of a pair."""
    pairs = [pair.split() for pair in swapped.split(", ")]
    return dict([*pairs, *(pair[::-1] for pair in pairs), *(pair.split() for pair in replaced.split(", "))])


_OPERATORS = _table(
    "Lt LtE, Gt GtE, Eq NotEq, In NotIn, Is IsNot, And Or, Add Sub, Mult Div, LShift RShift, BitAnd BitOr",
    "FloorDiv Mult, Mod Mult, Pow Mult, MatMult Mult, BitXor BitOr",
)
_CALLS = _table("min max, minimum maximum, any all, ceil floor", "rint floor, insert append, partition rpartition")

_LOGGERS = ("log", "_log")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a file: `old` became `new` in a function, whose first line is given, or outside of all, line 0.

    `tests` are those that look at it if they are named by hand; otherwise they are found by running all.
    """

    path: str
    function: str
    first_line: int
    line: int
    old: str
    new: str
    source: str
    number: int = 0
    tests: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Return what tells it from others, and stays the same when other lines of the file change."""
        parts = (self.path, self.function, self.old, self.new, str(self.number))
        return sha256("\0".join(parts).encode()).hexdigest()[:12]

    @property
    def change(self) -> tuple[str, str, str, str]:
        """Return what a person reads of it: path, function, old and new."""
        return self.path, self.function, self.old, self.new


class StaleFault(Exception):
    """The text of a fault made by hand is not in its file exactly once any more."""


def planted(root: Path, fault: dict[str, Any]) -> Mutant:
    """Return a fault of the list as a mutant. Raises StaleFault."""
    source = (root / fault["file"]).read_text("utf-8")
    if (found := source.count(fault["old"])) != 1:
        raise StaleFault(f"{fault['name']!r}: {fault['file']} has its text {found} times and not once: write it anew")
    line = source[: source.index(fault["old"])].count("\n") + 1
    changed = source.replace(fault["old"], fault["new"])
    return Mutant(fault["file"], "by hand", 0, line, fault["name"], "", changed, tests=tuple(fault["tests"]))


def mutants_of(root: Path, path: str) -> list[Mutant]:
    """Return all mutants that the tables make of a file."""
    text = (root / path).read_text("utf-8")
    numbers: Counter[tuple[str, str, str]] = Counter()
    mutants = []
    for node, new, function, first_line in _changes(ast.parse(text), "", 0):
        change = (function, ast.unparse(node), ast.unparse(new))
        source = _replaced(text, node, change[2])
        mutants.append(Mutant(path, function, first_line, node.lineno, *change[1:], source, numbers[change]))
        numbers[change] += 1
    return mutants


def _changes(parent: ast.AST, function: str, first_line: int) -> Iterator[tuple[Any, ast.AST, str, int]]:
    """Yield each node that can be changed, with its change and the function that it is in."""
    for node in _behaviour(parent):
        for new in _alternatives(node):
            yield node, new, function, first_line
        if isinstance(node, ast.If | ast.IfExp | ast.While) and not _has_opposite(node.test):
            yield node.test, ast.UnaryOp(ast.Not(), node.test), function, first_line
        if isinstance(node, Function | ast.ClassDef):
            name = f"{function}.{node.name}".lstrip(".")
            first = min((node.lineno, *(decorator.lineno for decorator in node.decorator_list)))
            yield from _changes(node, name, first if isinstance(node, Function) else first_line)
        else:
            yield from _changes(node, function, first_line)


def _behaviour(parent: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that decide what it does."""
    for name, value in ast.iter_fields(parent):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not _says_nothing(node):
                yield node


def _says_nothing(node: ast.AST) -> bool:
    """Return True for logging and messages, and for code that guards against mistakes of its own."""
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.Import() | ast.ImportFrom() | ast.keyword("strict"):
            return True
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name)))):
            return name in _LOGGERS
        case ast.If(ast.Name("TYPE_CHECKING")):
            return True
    return False


def _has_opposite(test: ast.AST) -> bool:
    """Return True for a condition that becomes its opposite already by the change of an operator."""
    match test:
        case ast.Compare(ops=[operator]):
            return not isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        case ast.UnaryOp(ast.Not()) | ast.Constant():
            return True
    return False


def _alternatives(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                yield _with(node, ops=[*node.ops[:place], _other(operator), *node.ops[place + 1 :]])
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) | ast.AugAssign(op=operator):
            yield _with(node, op=_other(operator))
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.Constant(int() | float() as value):
            yield ast.Constant(not value if isinstance(value, bool) else value + 1 if value < 10 else value * 2)
        case ast.Call(ast.Name() | ast.Attribute() as called):
            field = "id" if isinstance(called, ast.Name) else "attr"
            if new := _CALLS.get(getattr(called, field)):
                yield _with(node, func=_with(called, **{field: new}))
        case ast.stmt():
            yield from _statements(node)


def _other(operator: ast.AST) -> ast.AST:
    found: ast.AST = getattr(ast, _OPERATORS[type(operator).__name__])()
    return found


def _statements(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(ast.Call() | ast.YieldFrom() | ast.Yield()) | ast.Raise():
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()


def _with(node: Any, **fields: object) -> Any:
    """Return a copy of the node with other fields."""
    changed = copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _replaced(text: str, node: Any, new: str) -> str:
    """Return the text with the node replaced; an expression gets brackets, and statements their indentation."""
    lines = text.encode().splitlines(keepends=True)
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    indented = new.replace("\n", "\n" + " " * node.col_offset) if isinstance(node, ast.stmt) else f"({new})"
    return str(before + indented.encode() + after, "utf-8")
