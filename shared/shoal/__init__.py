"""Shoal's contract and client: everything that a program needs to put jobs into the queue and get their replies."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.client.handles import IndexHandle, LongHandle
    from shoal.client.http.client import HttpClient
    from shoal.client.http.long_jobs import HttpLongHandle
    from shoal.client.job_source import ServerFile
    from shoal.client.questions import Handle
    from shoal.client.redis.async_client import AsyncClient, AsyncHandle, AsyncIndexHandle
    from shoal.client.redis.client import Client
    from shoal.contract.jobs import Job
    from shoal.contract.options import Options
    from shoal.contract.replies import Chunk, Reply
    from shoal.contract.vectors import SparseVector
    from shoal.errors import ShoalError
    from shoal.operations import Decode, Embed, Rerank, Search, Tokenize
    from shoal.operations.search_options import SearchOptions
    from shoal.settings import Settings

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "AsyncHandle",
    "AsyncIndexHandle",
    "Chunk",
    "Client",
    "Decode",
    "Embed",
    "Handle",
    "HttpClient",
    "HttpLongHandle",
    "IndexHandle",
    "Job",
    "LongHandle",
    "Options",
    "Reply",
    "Rerank",
    "Search",
    "SearchOptions",
    "ServerFile",
    "Settings",
    "ShoalError",
    "SparseVector",
    "Tokenize",
]

_HOMES = {
    "AsyncClient": "client.redis.async_client",
    "AsyncHandle": "client.redis.async_client",
    "AsyncIndexHandle": "client.redis.async_client",
    "Chunk": "contract.replies",
    "Client": "client.redis.client",
    "Decode": "operations",
    "Embed": "operations",
    "Handle": "client.questions",
    "HttpClient": "client.http.client",
    "HttpLongHandle": "client.http.long_jobs",
    "IndexHandle": "client.handles",
    "Job": "contract.jobs",
    "LongHandle": "client.handles",
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


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that the command line and `import shoal` stay quick."""
    if name in _HOMES:
        return getattr(import_module(f"shoal.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
