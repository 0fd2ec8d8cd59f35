"""Shoal's contract and client: everything that a program needs to put jobs into the queue and get their replies."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `as` makes the names public for type checkers
    from shoal.client.http.client import HttpClient as HttpClient
    from shoal.client.http.long_jobs import HttpLongHandle as HttpLongHandle
    from shoal.client.job_source import ServerFile as ServerFile
    from shoal.client.long_job_handles import IndexHandle as IndexHandle
    from shoal.client.long_job_handles import LongHandle as LongHandle
    from shoal.client.redis.async_client import AsyncClient as AsyncClient
    from shoal.client.redis.async_client import AsyncHandle as AsyncHandle
    from shoal.client.redis.async_client import AsyncIndexHandle as AsyncIndexHandle
    from shoal.client.redis.client import Client as Client
    from shoal.client.text_client import Handle as Handle
    from shoal.contract.jobs import Job as Job
    from shoal.contract.options import Options as Options
    from shoal.contract.replies import Chunk as Chunk
    from shoal.contract.replies import Reply as Reply
    from shoal.contract.vectors import SparseVector as SparseVector
    from shoal.errors import ShoalError as ShoalError
    from shoal.operations import Decode as Decode
    from shoal.operations import Embed as Embed
    from shoal.operations import Rerank as Rerank
    from shoal.operations import Search as Search
    from shoal.operations import Tokenize as Tokenize
    from shoal.operations.search_options import SearchOptions as SearchOptions
    from shoal.settings import Settings as Settings

__version__ = "0.1.0"

#: The module of each public name.
_HOMES = {
    "AsyncClient": "client.redis.async_client",
    "AsyncHandle": "client.redis.async_client",
    "AsyncIndexHandle": "client.redis.async_client",
    "Chunk": "contract.replies",
    "Client": "client.redis.client",
    "Decode": "operations",
    "Embed": "operations",
    "Handle": "client.text_client",
    "HttpClient": "client.http.client",
    "HttpLongHandle": "client.http.long_jobs",
    "IndexHandle": "client.long_job_handles",
    "Job": "contract.jobs",
    "LongHandle": "client.long_job_handles",
    "Options": "contract.options",
    "Reply": "contract.replies",
    "Rerank": "operations",
    "Search": "operations",
    "SearchOptions": "operations.search_options",
    "ServerFile": "client.job_source",
    "Settings": "settings",
    "ShoalError": "errors",
    "SparseVector": "contract.vectors",
    "Tokenize": "operations",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that the command line and `import shoal` stay quick."""
    if name in _HOMES:
        return getattr(import_module(f"shoal.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
