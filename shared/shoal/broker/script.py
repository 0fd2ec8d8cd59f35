"""Lua scripts that run inside Redis, with named arguments and named results (docs/protocol.md)."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple, Self

from shoal.contract import wire


@dataclass(frozen=True, slots=True)
class Script:
    """A script and its digest, by which Redis knows it once it has seen the text."""

    text: str
    digest: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the script with that text."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    @classmethod
    def load(cls, package: str, *names: str) -> Self:
        """Return the files `lua/<name>.lua` of the package, one after the other, as one script."""
        folder = resources.files(package)
        return cls.of("".join(folder.joinpath(f"lua/{name}.lua").read_text() for name in names))


class ScriptCall(NamedTuple):
    """One run of a script: the keys that it touches, and its arguments by name."""

    keys: Sequence[str]
    arguments: Mapping[str, Any]

    def command(self, name: str, script: str) -> tuple[Any, ...]:
        """Return the command that runs it: `EVAL` with the script's text or `EVALSHA` with its digest."""
        return (name, script, len(self.keys), *self.keys, wire.pack_arguments(self.arguments))
