"""API keys: a file of names, roles and digests, which is read again when it changes.

A line of the file is `NAME ROLE DIGEST [RATE]`: `web user 5f2c… 100/second`. The digest is the key's SHA-256, in hex.
One round of SHA-256 is enough, because a key has 256 random bits and cannot be guessed. The slow hash that passwords
need would only cost time in each request. Empty lines and lines that begin with `#` are ignored and kept.
"""

import fcntl
import hashlib
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from shoal.errors import BadSetting, Unauthorized

#: The beginning of every key. Programs that search for leaked secrets can recognise a key by it.
PREFIX = "shoal_"

#: Least time between two checks of the file for changes, in seconds.
_CHECK_EVERY_S = 1.0

#: A line of the file. A name begins with a letter and has no colon, so that no name looks like a network address.
_LINE = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9_.-]{0,63})\s+(?P<role>user|admin)\s+(?P<digest>[0-9a-f]{64})"
    r"(?:\s+(?P<rate>[1-9][0-9]{0,8}/(?:second|minute|hour|day)))?"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The name, role, digest and rate of a key, without the key itself."""

    name: str
    role: str
    digest: bytes = field(repr=False)
    rate: str = ""

    @classmethod
    def parse(cls, line: str) -> Self:
        """Return the key in a line of the file. An error does not repeat the line, which could contain a secret."""
        if not (found := _LINE.fullmatch(line.strip())):
            raise BadSetting(
                "a key takes NAME ROLE DIGEST [RATE]: a name of a letter and then up to 63 letters, digits and . _ -; "
                "user or admin; a SHA-256 in hex; and a number, a slash and second, minute, hour or day: 100/second"
            )
        return cls(found["name"], found["role"], bytes.fromhex(found["digest"]), found["rate"] or "")


class Keyring:
    """The keys of a file, read again when the file changes. Thread-safe. Raises BadSetting for a wrong file."""

    def __init__(self, path: Path):
        self._path = path
        self._load()

    def authenticate(self, environ: Mapping[str, Any]) -> ApiKey:
        """Return the key that a request carries. Raises Unauthorized without a key, and for an unknown key."""
        scheme, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
        secret = token.strip() if scheme.lower() == "bearer" else str(environ.get("HTTP_X_API_KEY", ""))
        if not secret:
            raise Unauthorized("the request has no key: send one as `Authorization: Bearer <key>`")
        if not (key := self.find(secret)):
            raise Unauthorized("the request's key is unknown: check it, or make one with `shoal key new`")
        return key

    def find(self, secret: str) -> ApiKey | None:
        """Return the key with this secret, or None. The duration of a call reveals nothing about the key."""
        if time.monotonic() > self._next_check_s:
            self._reload_if_changed()
        digest = hashlib.sha256(secret.encode()).digest()
        return self._by_digest.get(digest)  # no client can choose the digest, so the time reveals nothing

    def _load(self) -> None:
        self._next_check_s = time.monotonic() + _CHECK_EVERY_S
        self._loaded_stamp = _stamp(self._path)
        self._by_digest = {key.digest: key for key in read(self._path)}

    def _reload_if_changed(self) -> None:
        self._next_check_s = time.monotonic() + _CHECK_EVERY_S
        if _stamp(self._path) == self._loaded_stamp:
            return
        try:
            self._load()
        except BadSetting as error:
            _log.error("the keys stay as they were: %s", error.message)
        else:
            _log.info("%s changed and has %d keys now", self._path, len(self._by_digest))


def read(path: Path) -> list[ApiKey]:
    """Return the keys of the file. Raises BadSetting, whose message names the wrong line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise BadSetting(f"the API keys cannot be read from {path} ({reason}): see `shoal key new`") from None
    keys = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                keys.append(ApiKey.parse(line))
            except BadSetting as error:
                raise BadSetting(f"{path}, line {number}: {error.message}") from None
    if twice := [name for name, num in Counter(key.name for key in keys).items() if num > 1]:
        raise BadSetting(f"{path} has two keys that are called {min(twice)}: delete one")
    return keys


def add(path: Path, name: str, role: str, rate: str) -> str:
    """Make a key, append its line to the file or to a new file, and return the key. The key itself is not stored."""
    secret = PREFIX + secrets.token_urlsafe(32)
    line = " ".join(f"{name} {role} {hashlib.sha256(secret.encode()).hexdigest()} {rate}".split())
    name = ApiKey.parse(line).name  # raises BadSetting
    # The file is changed in place, because a container that has mounted it would not see a new file of the same name.
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if name in [known.name for known in read(path)]:
            raise BadSetting(f"{path} has a key that is called {name}: delete its line first, or choose another name")
        file.seek(0)
        file.write("\n" * (file.read()[-1:] not in ("", "\n")) + f"{line}\n")
    return secret


def _stamp(path: Path) -> tuple[int, ...]:
    """Return a value that differs after each change of the file."""
    try:
        state = path.stat()
    except OSError:
        return ()
    return (state.st_ino, state.st_size, state.st_mtime_ns)
