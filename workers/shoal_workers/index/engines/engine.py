"""The address of an index in a vector engine, such as `postgresql://user@host/database#news`, and opening its table."""

import re
from typing import TYPE_CHECKING

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, MissingExtra
from shoal.process.extra import install_command

if TYPE_CHECKING:
    from shoal_workers.index.engines.pgvector import Table

#: Longest wait for each answer in seconds: during a search, and while a group of rows is written and indexed.
SEARCH_S, WRITE_S = 5, 60

_ADDRESS = re.compile(r"postgresql://[^#\s]+#[A-Za-z0-9_.-]{1,63}")

#: A password before the host, or among the parameters.
_PASSWORD = re.compile(r"//[^/@]*:([^?#]*|(?!\d*[/?#]).*)@|[?&](ssl_?)?password=", re.IGNORECASE)


def check_address(address: str) -> None:
    """Raise InvalidRequest for a bad address of an engine."""
    if _PASSWORD.search(address):  # first, because the other messages quote the address
        raise InvalidRequest("the address of an engine has a password: set SHOAL_ENGINE_PASSWORD instead")
    if not _ADDRESS.fullmatch(address):
        raise InvalidRequest(
            f"{excerpt(address)} is not an address of an engine: it takes postgresql://, a host and a database without "
            "white space, and after a # the table, of 1 to 63 letters, digits, points, hyphens or underscores"
        )


def open_table(address: str, password: str, timeout_s: int = SEARCH_S) -> "Table":
    """Return the table at an address. Its calls wait `timeout_s` for each answer. The engine is not contacted yet.

    Raises InvalidRequest for a bad address, and MissingExtra.
    """
    check_address(address)
    try:
        from shoal_workers.index.engines.pgvector import Table
    except ImportError as error:
        raise MissingExtra(f"an index in pgvector needs its client; run: {install_command('pgvector')}") from error
    url, _, name = address.rpartition("#")
    return Table(url, name, password, timeout_s)
