"""Connections of threads to Redis, which redis-py opens, and round trips over them.

Round trips do not use redis-py's methods and pipelines, which need twice the processor time of the round trip itself.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from queue import Empty
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import redis
from hiredis import pack_command
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import MovedError
from redis.retry import Retry

from shoal.broker.circuit_breaker import WATCHED, CircuitBreaker
from shoal.broker.sentinel_cluster import Primary, split_url
from shoal.errors import Unavailable

#: Longest time that a command blocks in Redis, in seconds. A stop or a lost connection is noticed within this time.
BLOCK_S = 1.0

#: Longest wait for an answer of Redis or for a new connection, in seconds. So a caller learns within a second that
#: Redis is away. On a busy machine an answer takes some hundredths of a second.
ANSWER_S = 0.7

#: Longest time that a command blocks while a caller waits, in seconds. Together with `ANSWER_S` it is below a second.
SHORT_BLOCK_S = 0.25

#: Lowest speed of a connection, in bytes a second. Time limits of commands include the transfer at this speed.
MIN_BYTES_PER_S = 1_000_000

#: Size limit of a small command, in bytes. A small command has the connection's own time limit, because setting another
#: one needs two system calls.
SMALL_BYTES = 65_536

#: A command of more than `LARGE_BYTES` is large. Redis serves no other client while it reads and runs a large command,
#: so a process sends one large command at a time. The next one waits for at most `MAX_LARGE_WAIT_S`.
LARGE_BYTES, MAX_LARGE_WAIT_S = 2**20, 30.0

#: Largest number of connections of a pool. A caller uses one only for a round trip, so few are in use at once.
MAX_CONNECTIONS = 64

#: Lowest and highest values of a URL's options. By default, Redis serves at most 10,000 clients.
_BOUNDS = {"max_connections": (1, 10_000), "socket_timeout": (0.001, 3_600), "socket_connect_timeout": (0.001, 3_600)}

#: Largest number of times that a command is sent again because another node of the cluster has the keys.
MAX_MOVES = 4

#: Longest time that a caller waits for a free connection, in seconds.
MAX_WAIT_S = 5.0

#: The default options of connections. The URL may change them.
_OPTIONS: dict[str, Any] = {
    "retry": Retry(NoBackoff(), 0),
    "retry_on_error": [redis.ReadOnlyError],  # does not retry, but closes the connection to a demoted primary
    "max_connections": MAX_CONNECTIONS,
    "driver_info": None,  # without CLIENT SETINFO, which needs a round trip and an access rule
}


class PasswordFile(redis.CredentialProvider):
    """A user whose password is in a file. Each new connection reads the file again, because the password may change."""

    def __init__(self, path: str, username: str | None):
        self._path = path
        self._username = username

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the user and the password, or only the password for the default user."""
        try:
            password = Path(self._path).read_text().strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise redis.AuthenticationError(f"the password_file {self._path} cannot be read") from error
        return (self._username, password) if self._username else (password,)


def read_url(url: str, answer_s: float) -> dict[str, Any]:
    """Return a connection's options, including redis-py's `connection_class` for threads and the `primary`, if any."""
    url, primary = split_url(url, answer_s)
    options = parse_url(url)  # type: ignore[no-untyped-call]
    if not options.keys() & {"db", "path"} and urlsplit(url).path.strip("/"):
        raise ValueError("redis-py would read a database that is no number as 0")
    options.get("host", "").encode("idna")  # raises a ValueError if the name has an empty or long part
    if path := options.pop("password_file", None):
        options["credential_provider"] = PasswordFile(path, options.pop("username", None))
    limits = {"socket_timeout": answer_s, "socket_connect_timeout": answer_s}
    values: dict[str, Any] = _OPTIONS | limits | {"connection_class": redis.Connection} | options
    values |= {"protocol": 2, "decode_responses": False}  # whatever the URL says, answers are lists and bytes
    for name, (least, most) in _BOUNDS.items():
        if not least <= values[name] <= most:
            found = f"{name} in the Redis URL is {values[name]:,}"
            raise Unavailable(f"{found}: write a number from {least:g} to {most:,}, or leave it out")
    return values | {"primary": primary}


@contextmanager
def readable_url() -> Iterator[None]:
    """Raise Unavailable if a URL cannot be read. The message does not repeat the URL, which may contain a password."""
    try:
        yield
    except (ValueError, TypeError, redis.RedisError) as error:
        remedy = (
            "write redis://host:port/db, redis+sentinel://host:port,host:port/service/db or redis+cluster://host:port,"
            "host:port, with rediss for TLS and special characters of a password as %XX"
        )
        raise Unavailable(f"the Redis URL cannot be read ({type(error).__name__}): {remedy}") from None


def printable_url(url: str) -> str:
    """Return the URL without user, password and options."""
    scheme, _, rest = url.partition("://")
    if "+" in scheme:
        return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
    options = parse_url(url)  # type: ignore[no-untyped-call]
    if "path" in options:
        return f"{scheme}://{options['path']}"
    return f"{scheme}://{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db', 0)}"


class ConnectionPool(redis.BlockingConnectionPool):
    """The connections of one process, for its threads and libraries. A thread waits until a connection is free."""

    def __init__(self, **options: Any):
        super().__init__(timeout=MAX_WAIT_S, **options)  # type: ignore[no-untyped-call]
        self._breaker: CircuitBreaker = self.connection_kwargs.get("breaker") or CircuitBreaker()
        self._primary: Primary | None = self.connection_kwargs.get("primary")

    def reset(self) -> None:
        """Begin without connections, at the start and after a fork."""
        self._large = Lock()
        super().reset()  # type: ignore[no-untyped-call]

    def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> Any:
        """Return an open connection, to be released. Raises Unavailable after `MAX_WAIT_S`, and redis.RedisError.

        Replaces redis-py's method, as `release` does, because its metrics take longer than the round trip itself.
        """
        self._breaker.check()
        self._checkpid()
        try:
            connection = self.pool.get(timeout=self.timeout)
        except Empty:
            raise all_in_use(self.timeout) from None
        try:
            connection = connection or self.make_connection()  # type: ignore[no-untyped-call]
            if connection._sock is None:
                connection.connect()
            with suppress(redis.ConnectionError, redis.TimeoutError):
                if not connection.can_read():
                    return connection
            connection.disconnect()  # Redis has closed it
            connection.connect()
        except BaseException:
            self.release(connection)
            raise
        return connection

    def release(self, connection: Any) -> None:
        """Give a connection back to the pool. After a fork, a connection of the parent is dropped."""
        if connection is None or connection.pid == self.pid:
            self.pool.put_nowait(connection)

    @contextmanager
    def taken(self) -> Iterator[Any]:
        """Take a connection. After an error it is closed, because an answer may still come."""
        connection = self.get_connection()
        try:
            yield connection
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, redis.ReadOnlyError):
                self.drop_idle()
            raise
        finally:
            self.release(connection)

    def ask(self, commands: Sequence[Sequence[Any]], block_s: float = 0.0) -> list[Any]:
        """Send the commands together and return their answers. An answer may be an error of Redis.

        Together the commands may block in Redis for `block_s`. Raises redis.RedisError if the answers do not come, and
        redis.ReadOnlyError if they come from a replica.
        """
        packed = [pack_command(tuple(command)) for command in commands]
        num_bytes = sum(map(len, packed))
        with self._alone() if num_bytes > LARGE_BYTES else nullcontext():
            for _ in range(MAX_MOVES):
                try:
                    return self._ask(packed, num_bytes, block_s)
                except MovedError as error:  # the commands have had no effect
                    self.follow(error)
            return self._ask(packed, num_bytes, block_s)

    def _ask(self, packed: Sequence[bytes], num_bytes: int, block_s: float) -> list[Any]:
        with self.taken() as connection:
            is_small = num_bytes <= SMALL_BYTES
            data = [b"".join(packed)] if is_small else pieces(packed, connection.socket_timeout)
            connection.send_packed_command(data, check_health=False)
            more_s = block_s if is_small else block_s + num_bytes / MIN_BYTES_PER_S
            limit = {"timeout": more_s + connection.socket_timeout} if more_s else {}
            return [_read(connection, **limit) for _ in packed]

    def follow(self, error: MovedError) -> None:
        """From now on, connect to the node that `error` names, because it has the keys."""
        if self._primary:
            self._primary.note_move(error)
        self.drop_idle()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other large command is under way."""
        large = self._large
        if not large.acquire(timeout=MAX_LARGE_WAIT_S):
            raise all_in_use(MAX_LARGE_WAIT_S)
        try:
            with self._breaker.large():
                yield
        finally:
            large.release()

    def drop_idle(self) -> None:
        """Close all connections that are not in use, for example after a failover of their primary."""
        self._checkpid()  # after a fork, forgets the connections of the parent
        idle = []
        with suppress(Empty):
            while True:
                idle.append(self.pool.get_nowait())
        for connection in idle:
            if connection:
                connection.disconnect()
            self.pool.put_nowait(connection)

    def shut_down(self) -> None:
        """Close idle connections, and shut down the sockets of the others. Their threads then close these connections.

        If this thread closed such a connection, the other thread could read from a new socket with the same descriptor.
        """
        self.drop_idle()
        for connection in self._get_in_use_connections():  # type: ignore[no-untyped-call]
            if (sock := connection._sock) is not None:
                with suppress(OSError):  # the connection has ended already
                    sock.shutdown(socket.SHUT_RDWR)


def open_pool(url: str, answer_s: float = ANSWER_S) -> ConnectionPool:
    """Return a pool for `url` that never retries; a command fails after `answer_s`. Raises Unavailable."""
    with readable_url():
        options = read_url(url, answer_s)
        options["connection_class"] = WATCHED[options["connection_class"]]
        pool = ConnectionPool(**options, breaker=CircuitBreaker())
        pool.connection_class(**pool.connection_kwargs)  # raises an error for unknown options
    return pool


def _read(connection: Any, **limit: float) -> Any:
    """Return an answer, which may be an error of Redis."""
    try:
        return connection.read_response(**limit)
    except redis.ResponseError as error:
        return refused(error)


def all_in_use(waited_s: float) -> Unavailable:
    """Return the error for a caller that has waited `waited_s` for a connection."""
    return Unavailable(
        f"all connections of this process to Redis were in use for {waited_s:g} s: try again, ask for less "
        "at a time, or start more processes"
    )


def pieces(packed: Sequence[bytes], timeout_s: float) -> Iterator[bytes | memoryview]:
    """Yield the bytes in pieces. Each takes at most `timeout_s`, the socket's limit, at the lowest speed."""
    most = max(1, int(timeout_s * MIN_BYTES_PER_S))
    for data in packed:
        if len(data) <= most:
            yield data
        else:
            view = memoryview(data)
            yield from (view[n : n + most] for n in range(0, len(data), most))


def refused(error: redis.ResponseError) -> redis.ResponseError:
    """Return Redis's error reply; raise MovedError or ReadOnlyError if it says that another node is the primary."""
    if isinstance(error, MovedError):
        raise error
    if "read only replica" in str(error):
        raise redis.ReadOnlyError(str(error)) from error  # an error in a script of Redis 6.2 has no class of its own
    return error
