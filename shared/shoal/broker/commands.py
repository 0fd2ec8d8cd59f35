"""Commands to Redis as coroutines, so that what uses them is written once for threads and for an event loop."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from shoal.broker.broker import Broker
from shoal.broker.script import Script, ScriptCall


class Commands(Protocol):
    """The commands of a broker."""

    async def execute(self, *command: Any, block_s: float = 0.0) -> Any:
        """Return the answer to one command, which may block in Redis for `block_s`."""

    async def pipeline(self, *commands: Sequence[Any], block_s: float = 0.0) -> list[Any]:
        """Return the answers to several commands, sent in one round trip; raise the first error among them."""

    async def run(self, script: Script, keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
        """Return the result of a script."""

    async def run_many(self, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run the script once for each call, in one round trip; return for each its result, or its error unraised."""


class BlockingCommands:
    """The commands of a broker; each blocks the thread until it is answered, and leaves nothing to await."""

    def __init__(self, broker: Broker):
        self._broker = broker

    async def execute(self, *command: Any, block_s: float = 0.0) -> Any:
        """Return the answer to one command."""
        return self._broker.execute(*command, block_s=block_s)

    async def pipeline(self, *commands: Sequence[Any], block_s: float = 0.0) -> list[Any]:
        """Return the answers to several commands."""
        return self._broker.pipeline(*commands, block_s=block_s)

    async def run(self, script: Script, keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
        """Return the result of a script."""
        return self._broker.run(script, keys, arguments)

    async def run_many(self, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
        """Return the result of each call of a script, or its error."""
        return self._broker.run_many(script, calls)
