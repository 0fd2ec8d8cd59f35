"""The contract between an index and a vector engine, and the address of an index in one: `postgresql://user@host/database#news`."""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, MissingExtra
from shoal.operations.search_filter import Filter
from shoal.process.extra import install_command

#: The module of each scheme of an address. It has the name of its extra.
MODULES = {"postgresql": "pgvector"}

#: Longest time for a search, and for writing a group of rows, which an engine may index meanwhile, in seconds.
SEARCH_S, WRITE_S = 5, 60

#: The cosine and the document of each row that was found, best first, for each query.
Found = list[list[tuple[float, str]]]

_COLLECTION = re.compile(r"[A-Za-z0-9_.-]{1,63}")

#: A password before the host, or among the parameters.
_PASSWORD = re.compile(r"//[^/@]*:[^?#]*@|[?&](ssl)?password=", re.IGNORECASE)


class Rows(NamedTuple):
    """Rows numbered from `first`, with normalised vectors, documents as lines of JSON, and values of `fields`."""

    first: int
    vectors: NDArray[np.float32]
    documents: Sequence[str]
    values: Sequence[Mapping[str, Any]]


class Engine(Protocol):
    """A collection of rows in a vector engine, used by one thread at a time.

    `outages` mean that the engine does not answer, and `refusals` that it does not do what it is asked.
    """

    outages: tuple[type[Exception], ...]
    refusals: tuple[type[Exception], ...]

    def create(self, dimension: int) -> None:
        """Make the collection if there is none."""

    def count(self) -> int:
        """Return the number of rows; 0 if there is no collection."""

    def add(self, rows: Rows) -> None:
        """Add rows. Some may be there already."""

    def finish(self) -> None:
        """Prepare the collection for searches, once it has all rows."""

    def search(self, queries: NDArray[np.float32], k: int, wanted: Filter | None) -> Found:
        """Return the `k` nearest rows that match the filter, for each query."""

    def drop(self) -> None:
        """Delete the collection, if there is one."""


def engine_of(address: str) -> str:
    """Return the name of the engine that an address names. Raises InvalidRequest for a bad address."""
    if _PASSWORD.search(address):  # first, because the other messages have the address
        raise InvalidRequest("the address of an engine has a password: set SHOAL_ENGINE_PASSWORD instead")
    try:
        url = urlsplit(address)
        if not (url.hostname or url.path.startswith("/")) or url.port == 0:
            raise ValueError("it names no host")
        if url.scheme not in MODULES:
            raise ValueError(f"it begins with one of {', '.join(f'{scheme}://' for scheme in MODULES)}")
        if not _COLLECTION.fullmatch(url.fragment):
            raise ValueError("after the # are up to 63 letters, digits, points, hyphens and underscores")
        if re.search(r"\s", address):
            raise ValueError("it has white space: write %20")
    except ValueError as error:
        raise InvalidRequest(f"{excerpt(address)} is no address of an engine: {error}") from error
    return MODULES[url.scheme]


def open_engine(address: str, password: str, timeout_s: int = SEARCH_S) -> Engine:
    """Return the collection at an address, whose calls take at most `timeout_s`. It is not asked yet.

    Raises InvalidRequest for a bad address, and MissingExtra.
    """
    name = engine_of(address)
    try:
        module = import_module(f"{__package__}.{name}")
    except ImportError as error:
        raise MissingExtra(f"an index in {name} needs its client; run: {install_command(name)}") from error
    url, _, collection = address.rpartition("#")
    opened: Engine = module.open_collection(url, collection, password, timeout_s)
    return opened
