"""The broker: it sends every command of a process to Redis, and translates Redis's errors into Shoal's."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any, Self

import redis
from redis.exceptions import AskError, ClusterDownError, MovedError, NoScriptError, TryAgainError

from shoal.broker.connections import ANSWER_S, ConnectionPool, open_pool
from shoal.contract import wire
from shoal.errors import Overloaded, ShoalError, Unavailable

#: Parts of Redis's error messages, in lower case, each with the remedy. The rest of a message differs by version.
_REMEDIES = {
    "read only replica": "it is a replica; this goes on by itself once the Redis URL leads to the primary",
    "instance state changed": "it was made a replica; this goes on by itself once the Redis URL leads to the primary",
    "link with master is down": "it is a replica without its primary: promote it, or bring the primary back",
    "good replicas to write": "fewer replicas keep up than its min-replicas-to-write asks for: bring one back",
    "loading the dataset": "it was just started and reads its data; this goes on by itself",
    "busy running a script": "another program's script takes long: wait, or end it by SCRIPT KILL",
    "wrongtype": "another program wrote a key of Shoal's: delete it (docs/architecture.md lists the keys)",
    "last possible id": "another program wrote a key of Shoal's: delete it (docs/architecture.md lists the keys)",
    "misconf": "it cannot write to its disk: make room there",
    "non local key": "the pool's slot moves to another node; this goes on by itself once it has moved",
    "max number of clients": "raise its maxclients, or start fewer processes",
    "permissions to": "the rules of this user are too narrow: docs/redis-users.acl has what Shoal needs",
    "executing the script can't": "the rules of this user are too narrow: docs/redis-users.acl has what Shoal needs",
    "invalid username-password pair": "check the user and the password in the Redis URL",
    "authenticat": "put the password into the Redis URL, or name a file that has it by ?password_file=",
    "noauth": "put the password into the Redis URL, or name a file that has it by ?password_file=",
    "the password_file": "check its path in the Redis URL, and its permissions",
}

#: Errors of a cluster whose nodes change, each with the remedy. The command has had no effect.
_CLUSTER_REMEDIES: dict[type[redis.RedisError], str] = {
    MovedError: "another node has the pool's keys now; this goes on by itself",
    AskError: "the pool's slot moves to another node; this goes on by itself once it has moved",
    TryAgainError: "the pool's slot moves to another node; this goes on by itself once it has moved",
    ClusterDownError: "no node has the pool's slot; this goes on by itself once a replica is promoted",
}


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and its digest. The digest is enough to call a script that Redis has run before."""

    text: str
    digest: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the script with this text."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    @classmethod
    def load(cls, package: str, *names: str) -> Self:
        """Return one script, made by joining the package's files `lua/<name>.lua` in this order."""
        folder = resources.files(package)
        return cls.of("".join(folder.joinpath(f"lua/{name}.lua").read_text() for name in names))


class Broker:
    """A client of Redis for the threads of a process. Thread-safe. It connects on first use.

    Each thread that waits for an answer has a connection for itself.

    Every method raises Overloaded if Redis is out of memory, and Unavailable if it refuses a command or is silent.
    """

    def __init__(self, pool: ConnectionPool):
        self.connection_pool = pool

    @classmethod
    def connect(cls, url: str, answer_s: float = ANSWER_S) -> Self:
        """Return a broker for the Redis at `url`. Redis must answer within `answer_s`; see `open_pool`."""
        return cls(open_pool(url, answer_s))

    def close(self) -> None:
        """Close all connections. Threads that wait for an answer get Unavailable."""
        self.connection_pool.shut_down()

    def ping(self) -> None:
        """Raise Unavailable if Redis does not answer."""
        self.execute("PING")

    def execute(self, *command: Any, block_s: float = 0.0) -> Any:
        """Return the answer to one command, which may block in Redis for `block_s`."""
        return self.pipeline(command, block_s=block_s)[0]

    def pipeline(self, *commands: Sequence[Any], block_s: float = 0.0) -> list[Any]:
        """Send commands in one round trip; return their answers, or raise the first error among them."""
        try:
            return checked(self.connection_pool.ask(commands, block_s))
        except redis.RedisError as error:
            raise translate(error) from error

    def run(self, script: Script, keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
        """Return the result of a script; `arguments` are its arguments by name (docs/protocol.md)."""
        given = (len(keys), *keys, wire.pack_arguments(arguments))
        try:
            (answer,) = self.connection_pool.ask([("EVALSHA", script.digest, *given)])
            if isinstance(answer, NoScriptError):  # a new Redis lacks the script
                (answer,) = self.connection_pool.ask([("EVAL", script.text, *given)])
            checked([answer])
        except redis.RedisError as error:
            raise translate(error) from error
        return wire.unpack_result(answer)

    def library_client(self) -> "redis.Redis":
        """Return a client of redis-py over the same connections, for a library. Use it inside `translated`."""
        return redis.Redis(connection_pool=self.connection_pool)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate redis-py's errors into Shoal's."""
        try:
            yield
        except MovedError as error:  # raised by RQ or another library that calls redis-py itself
            self.connection_pool.follow(error)
            raise translate(error) from error
        except redis.RedisError as error:
            raise translate(error) from error


def checked(answers: list[Any]) -> list[Any]:
    """Return the answers; raise the first error among them."""
    for answer in answers:
        if isinstance(answer, redis.ResponseError):
            raise answer
    return answers


def translate(error: redis.RedisError) -> ShoalError:
    """Return Shoal's error for an error of redis-py. The message has a remedy if Redis said why it refuses."""
    if remedy := _CLUSTER_REMEDIES.get(type(error)):
        return Unavailable(f"the cluster refuses ({error}): {remedy}")
    words = str(error).casefold()
    if "when used memory > 'maxmemory'" in words:
        return Overloaded(f"Redis has no memory left for this ({error}): try again later")
    for pattern, remedy in _REMEDIES.items():
        if pattern in words:
            return Unavailable(f"Redis refuses ({error}): {remedy}")
    return Unavailable(f"Redis does not answer ({error}): check that it runs and that the Redis URL is right")
