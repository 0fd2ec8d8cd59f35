"""Connections to Redis: how they are made, what their errors become, and how the commands of every job use them.

Those go around redis-py's methods and pipelines, which take twice the processor time of a round trip itself. redis-py
still opens the connections, so passwords, TLS and time limits are what the URL says.
"""

import hashlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry

from shoal.errors import Overloaded, Unavailable

#: Longest that one command blocks in Redis, so that a stop or a broken connection is noticed.
BLOCK_S = 1.0

#: Most connections of a process: each thread that waits for the result of a submitted job holds one.
MAX_CONNECTIONS = 10_000


@contextmanager
def translated() -> Iterator[None]:
    """Turns Redis's errors into ours: Overloaded when it is out of memory, else Unavailable."""
    try:
        yield
    except redis.RedisError as error:
        if "when used memory > 'maxmemory'" in str(error):  # what all versions say, whatever they say around it
            raise Overloaded(f"Redis has no memory left for another job ({error}): try again later") from error
        raise Unavailable(
            f"Redis does not answer ({error}): check that it runs and that the Redis URL is right"
        ) from error


def connect(url: str) -> redis.Redis:
    """A connection pool for `url`, with time limits and without retries: what fails is for the caller to decide.

    Nothing is sent yet. Raises Unavailable for a URL that cannot be read.
    """
    try:
        return redis.Redis.from_url(
            url,
            protocol=2,
            socket_timeout=BLOCK_S + 4,
            socket_connect_timeout=2,
            retry=Retry(NoBackoff(), 0),
            max_connections=MAX_CONNECTIONS,
        )
    except ValueError as error:
        raise Unavailable(f"the Redis URL cannot be read ({error}): write redis://host:port/db") from error


@dataclass(frozen=True, slots=True)
class Script:
    """A script that runs inside Redis, which knows it by its digest once it has seen the text."""

    text: str
    digest: str

    @classmethod
    def load(cls, name: str) -> Self:
        """The script `lua/<name>.lua` of this package."""
        text = resources.files("shoal").joinpath(f"lua/{name}.lua").read_text()
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a script: the keys that it touches, and its other arguments."""

    keys: Sequence[str]
    values: Sequence[Any]

    def command(self, name: str, script: str) -> tuple[Any, ...]:
        """The command that runs it: `EVAL` with the text of the script or `EVALSHA` with its digest."""
        return (name, script, len(self.keys), *self.keys, *self.values)


class Connections:
    """The open connections of one process. Thread-safe: each belongs to one thread for the time of a round trip."""

    def __init__(self, pool: redis.ConnectionPool):
        self._pool = pool
        self._idle: deque[Any] = deque()

    def ask(self, *commands: Sequence[Any]) -> list[Any]:
        """Sends the commands together and returns their answers; an error that Redis answers is one of them.

        Raises redis.RedisError when the answers do not come.
        """
        connection = self._take()
        try:
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            answers = [_answer(connection) for _ in commands]
        except BaseException:
            self._drop(connection)
            raise
        self._idle.append(connection)
        return answers

    def run(self, script: Script, *calls: Call) -> list[Any]:
        """Runs the script once for each call, in one round trip, and returns the answers as `ask` does."""
        answers = self.ask(*(call.command("EVALSHA", script.digest) for call in calls))
        for n, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):  # Redis was started since
                (answers[n],) = self.ask(calls[n].command("EVAL", script.text))
        return answers

    def _take(self) -> Any:
        """A connection that is open as far as can be told: Redis may have closed an idle one, or been restarted."""
        while self._idle:
            with suppress(IndexError):
                connection = self._idle.pop()
                if connection.pid != os.getpid():
                    continue  # it belongs to the process that this one was forked from
                if _is_open(connection):
                    return connection
                self._drop(connection)
        return self._pool.get_connection()

    def _drop(self, connection: Any) -> None:
        connection.disconnect()
        self._pool.release(connection)


def _is_open(connection: Any) -> bool:
    try:
        return not connection.can_read()
    except redis.ConnectionError:
        return False


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def checked(answer: Any) -> Any:
    """The answer, or the error that it is, raised."""
    if isinstance(answer, redis.ResponseError):
        raise answer
    return answer
