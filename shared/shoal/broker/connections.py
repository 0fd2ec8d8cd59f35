"""Connections to Redis: how they are made, what their errors become, and how the commands of every job use them.

Those go around redis-py's methods and pipelines, which take twice the processor time of a round trip itself. redis-py
still opens the connections, so passwords, TLS and time limits are what the URL says.
"""

import hashlib
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import NoScriptError
from redis.retry import Retry

from shoal.broker.circuit_breaker import WATCHED, CircuitBreaker
from shoal.errors import Overloaded, Unavailable

#: Longest that one command blocks in Redis, so that a stop or a broken connection is noticed.
BLOCK_S = 1.0

#: Longest that Redis may take for an answer, or for a connection: who asks is told within a second that it is away. A
#: machine that is merely busy takes some hundredths.
ANSWER_S = 0.7

#: Longest that a command blocks where somebody waits who is to be told: so much of the second is left.
SHORT_BLOCK_S = 0.25

#: Most connections of a process: each thread that waits for the result of a submitted job holds one.
MAX_CONNECTIONS = 10_000

#: How connections behave, where the URL does not say otherwise.
_OPTIONS: dict[str, Any] = {
    "protocol": 2,
    "retry": Retry(NoBackoff(), 0),
    "retry_on_error": [redis.ReadOnlyError],  # no retry either, but the connection to what is a replica now is dropped
    "max_connections": MAX_CONNECTIONS,
    "driver_info": None,  # a round trip less, and a command less that rules must allow
}

#: What Redis says when it is there and refuses, whatever the version says around it, and what helps.
_REMEDIES = {
    "read only replica": "it is a replica; this goes on by itself once the Redis URL leads to the primary",
    "instance state changed": "it was made a replica; this goes on by itself once the Redis URL leads to the primary",
    "ink with MASTER is down": "it is a replica without its primary: promote it, or bring the primary back",
    "good replicas to write": "fewer replicas keep up than its min-replicas-to-write asks for: bring one back",
    "loading the dataset": "it was just started and reads its data; this goes on by itself",
    "busy running a script": "a script of somebody's takes long: wait, or end it by SCRIPT KILL",
    "MISCONF": "it cannot write to its disk: make room there",
    "max number of clients": "raise its maxclients, or start fewer processes",
    "permissions to": "the rules of this user are too narrow: docs/redis-users.acl has what Shoal needs",
    "executing the script can't": "the rules of this user are too narrow: docs/redis-users.acl has what Shoal needs",
    "invalid username-password pair": "check the user and the password in the Redis URL",
    "uthenticat": "put the password into the Redis URL, or name a file that has it by ?password_file=",
    "the password_file": "check its path in the Redis URL, and who may read it",
}


@contextmanager
def translated() -> Iterator[None]:
    """Turns Redis's errors into ours: Overloaded when it is out of memory, else Unavailable."""
    try:
        yield
    except redis.RedisError as error:
        if "when used memory > 'maxmemory'" in str(error):
            raise Overloaded(f"Redis has no memory left for this ({error}): try again later") from error
        for words, remedy in _REMEDIES.items():
            if words in str(error):
                raise Unavailable(f"Redis refuses ({error}): {remedy}") from error
        raise Unavailable(
            f"Redis does not answer ({error}): check that it runs and that the Redis URL is right"
        ) from error


class PasswordFile(redis.CredentialProvider):
    """A user whose password is in a file, which is read for each connection: so it can change while this runs."""

    def __init__(self, path: str, username: str | None):
        self._path = path
        self._username = username

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """The user, if it is not the default one, and the password."""
        try:
            password = Path(self._path).read_text().strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise redis.AuthenticationError(f"the password_file {self._path} cannot be read") from error
        return (self._username, password) if self._username else (password,)


def connect(url: str, answer_s: float = ANSWER_S) -> redis.Redis:
    """A connection pool for `url`, without retries: what fails is for the caller to decide.

    Whatever takes Redis longer than `answer_s` fails, and so does everything at once while it is away. Nothing is sent
    yet. With `?password_file=<path>` the password is in that file. Raises Unavailable for a URL that
    cannot be read, without saying what it is: it may hold a password.
    """
    try:
        options = parse_url(url)  # type: ignore[no-untyped-call]
        if path := options.pop("password_file", None):
            options["credential_provider"] = PasswordFile(path, options.pop("username", None))
        options["connection_class"] = WATCHED[options.get("connection_class", redis.Connection)]
        limits = {"socket_timeout": answer_s, "socket_connect_timeout": answer_s}
        pool = redis.ConnectionPool(**(_OPTIONS | limits | options), outage=CircuitBreaker())
        pool.connection_class(**pool.connection_kwargs)  # refuses options that it does not know
    except (ValueError, TypeError, redis.RedisError) as error:
        remedy = "write redis://host:port/db or rediss://…, with what is not a letter or digit in a password as %XX"
        raise Unavailable(f"the Redis URL cannot be read ({type(error).__name__}): {remedy}") from None
    return redis.Redis.from_pool(pool)


def shown(url: str) -> str:
    """The URL that `connect` takes as it may be printed: without user, password and options."""
    options = parse_url(url)  # type: ignore[no-untyped-call]
    scheme = url.partition(":")[0]
    if "path" in options:
        return f"{scheme}://{options['path']}"
    return f"{scheme}://{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db', 0)}"


@dataclass(frozen=True, slots=True)
class Script:
    """A script that runs inside Redis, which knows it by its digest once it has seen the text."""

    text: str
    digest: str

    @classmethod
    def load(cls, *names: str) -> Self:
        """The scripts `lua/<name>.lua` of this package, one after the other, as one."""
        text = "".join(resources.files("shoal.queue").joinpath(f"lua/{name}.lua").read_text() for name in names)
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
        self._outage: CircuitBreaker = pool.connection_kwargs.get("outage") or CircuitBreaker()

    def ask(self, *commands: Sequence[Any], block_s: float = 0.0) -> list[Any]:
        """Sends the commands together and returns their answers; an error that Redis answers is one of them.

        The commands may block in Redis for `block_s`. Raises redis.RedisError when the answers do not come, and
        redis.ReadOnlyError when a replica gives them.
        """
        connection = self._take()
        try:
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            limit = {"timeout": block_s + connection.socket_timeout} if block_s else {}
            answers = [_answer(connection, limit) for _ in commands]
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, redis.ReadOnlyError):
                self._leave()
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
        self._outage.check()
        while self._idle:
            with suppress(IndexError):
                connection = self._idle.pop()
                if connection.pid != os.getpid():
                    continue  # it belongs to the process that this one was forked from
                if _is_open(connection):
                    return connection
                self._drop(connection)
        return self._pool.get_connection()

    def _leave(self) -> None:
        """Drops all connections not in use: they lead to what was the primary, and new ones to what is."""
        with suppress(IndexError):
            while True:
                self._drop(self._idle.pop())
        self._pool.disconnect(inuse_connections=False)

    def _drop(self, connection: Any) -> None:
        connection.disconnect()
        self._pool.release(connection)


def _is_open(connection: Any) -> bool:
    try:
        return not connection.can_read()
    except redis.ConnectionError:
        return False


def _answer(connection: Any, limit: Mapping[str, float]) -> Any:
    try:
        return connection.read_response(**limit)
    except redis.ResponseError as error:
        if "read only replica" in str(error):
            raise redis.ReadOnlyError(str(error)) from error  # which a script of Redis 6.2 does not say so clearly
        return error


def checked(answer: Any) -> Any:
    """The answer, or the error that it is, raised."""
    if isinstance(answer, redis.ResponseError):
        raise answer
    return answer
