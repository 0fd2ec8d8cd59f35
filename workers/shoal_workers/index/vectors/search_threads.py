"""The threads among which the large searches of a process are divided."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class SearchThreads:
    """Threads for the searches of all indexes of a process, whose number may change. Thread-safe.

    They sleep in between: those of BLAS would spin and take processors from the next forward pass.
    """

    def __init__(self, number: int = 1):
        self.resize(number)

    def resize(self, number: int) -> None:
        """Divide the next searches among `number` threads. Searches that are under way keep theirs."""
        self._map: Any = ThreadPoolExecutor(number, "search").map if number > 1 else map

    def map(self, function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        """Call the function for each, as `map` does."""
        return self._map(function, *arguments)  # type: ignore[no-any-return]


#: The calling thread alone.
ONE_THREAD = SearchThreads()
