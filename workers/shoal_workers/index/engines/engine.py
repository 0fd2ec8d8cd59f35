"""The address of an index in a vector engine, such as `postgresql://user@host/database#news`, and opening its table."""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, MissingExtra
from shoal.process.extra import install_command
from shoal_workers.index.engines.fields import Language

#: The engine for each URL scheme of an address. The module and the extra of an engine have the same name.
ENGINES = {"postgresql": "pgvector", "redis": "redis", "rediss": "redis", "lance": "lancedb", "lance+s3": "lancedb"}
ENGINES |= {"qdrant": "qdrant", "qdrants": "qdrant"}

#: Longest wait for each answer in seconds: during a search, and while a group of rows is written and indexed.
SEARCH_S, WRITE_S = 5, 60

#: The cosine and the document of each row that was found, best first, for each query.
Found = list[list[tuple[float, str]]]

_TABLE = re.compile(r"[A-Za-z0-9_.-]{1,63}")

#: A password before the host, or among the parameters.
_PASSWORD = re.compile(r"//[^/@]*:([^?#]*|(?!\d*[/?#]).*)@|[?&](ssl_?)?password=", re.IGNORECASE)


class Table(Protocol):
    """A table of rows in an engine, used by one thread at a time.

    `outages` are the errors of an engine that does not answer, and `refusals` the errors of a refused call. `language`
    is the language of its filters.
    """

    outages: tuple[type[Exception], ...]
    refusals: tuple[type[Exception], ...]
    language: Language

    def create(self, dimension: int, types: Mapping[str, type]) -> None:
        """Make the table if there is none, for fields of these `types`. Raises InvalidRequest if the engine cannot."""

    def count(self) -> int:
        """Return the number of rows; 0 if there is no table."""

    def add(
        self, first: int, vectors: NDArray[np.float32], documents: Sequence[str], values: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add rows, numbered from `first`, that the table lacks. The `documents` are lines of JSON."""

    def finish(self) -> None:
        """Prepare the table for searches after all rows have been added. There is no time limit."""

    def search(self, queries: NDArray[np.float32], k: int, wanted: str | None) -> Found:
        """Return the `k` nearest rows that match the filter `wanted`, for each query, or all if fewer match."""

    def drop(self) -> None:
        """Delete the table, if there is one."""


def check_address(address: str) -> str:
    """Return the name of the engine at an address. Raises InvalidRequest for a bad address."""
    if _PASSWORD.search(address):  # first, because the other messages quote the address
        raise InvalidRequest("the address of an engine has a password: set SHOAL_ENGINE_PASSWORD instead")
    try:
        url = urlsplit(address)
        if url.scheme not in ENGINES:
            raise ValueError(f"it must begin with {', '.join(f'{scheme}://' for scheme in ENGINES)}")
        if not (url.hostname or url.path.startswith("/")) or url.port == 0:
            raise ValueError("it names no host")
        if url.scheme == "lance" and url.hostname:
            raise ValueError("the path of a folder must begin with /, as in lance:///folder")
        if not _TABLE.fullmatch(url.fragment):
            raise ValueError("after the # there must be 1 to 63 letters, digits, points, hyphens or underscores")
        if re.search(r"\s", address):
            raise ValueError("it has white space: write %20")
    except ValueError as error:
        raise InvalidRequest(f"{excerpt(address)} is not an address of an engine: {error}") from error
    return ENGINES[url.scheme]


def open_table(address: str, password: str, timeout_s: int = SEARCH_S) -> Table:
    """Return the table at an address. Its calls wait `timeout_s` for each answer. The engine is not contacted yet.

    Raises InvalidRequest for a bad address, and MissingExtra.
    """
    engine = check_address(address)
    try:
        module = import_module(f"{__package__}.{engine}")
    except ImportError as error:
        raise MissingExtra(f"an index in {engine} needs its client; run: {install_command(engine)}") from error
    url, _, name = address.rpartition("#")
    table: Table = module.Table(url, name, password, timeout_s)
    return table
