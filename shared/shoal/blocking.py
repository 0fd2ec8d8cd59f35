"""Coroutines without an event loop: what Shoal's clients do is written once, and its I/O blocks or is awaited."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def run_now(steps: Awaitable[T]) -> T:
    """Return the result of a coroutine whose I/O blocks the thread, so that it never has anything to wait for.

    Raises what the coroutine raises, and RuntimeError if it waits for an event loop all the same.
    """
    try:
        next(steps.__await__())
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a coroutine that was to block waits for an event loop")


def iterate_now(stream: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield what such a generator yields; it is closed with the iterator."""
    try:
        while True:
            yield run_now(anext(stream))
    except StopAsyncIteration:
        return
    finally:
        run_now(stream.aclose())


def blocking(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a coroutine method of an object's `asynchronous` part as a method that blocks."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_now(method(self.asynchronous, *args, **kwargs))

    return call
