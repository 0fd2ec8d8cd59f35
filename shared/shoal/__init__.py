"""Shoal's contract and client: all that a program needs to put jobs into the queue and get replies out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.client.async_client import AsyncClient
    from shoal.client.client import Client
    from shoal.client.handle import AsyncHandle, Handle
    from shoal.client.http_client import HttpClient
    from shoal.client.http_index_handle import HttpIndexHandle
    from shoal.client.http_long_jobs import HttpLongHandle
    from shoal.client.index_handle import IndexHandle
    from shoal.client.long_handle import LongHandle
    from shoal.errors import ShoalError
    from shoal.jobs import Job, Options
    from shoal.replies import Chunk, Reply
    from shoal.settings import Settings

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "AsyncHandle",
    "Chunk",
    "Client",
    "Handle",
    "HttpClient",
    "HttpIndexHandle",
    "HttpLongHandle",
    "IndexHandle",
    "Job",
    "LongHandle",
    "Options",
    "Reply",
    "Settings",
    "ShoalError",
]

_HOMES = {
    "AsyncClient": "client.async_client",
    "AsyncHandle": "client.handle",
    "Chunk": "replies",
    "Client": "client.client",
    "Handle": "client.handle",
    "HttpClient": "client.http_client",
    "HttpIndexHandle": "client.http_index_handle",
    "HttpLongHandle": "client.http_long_jobs",
    "IndexHandle": "client.index_handle",
    "Job": "jobs",
    "LongHandle": "client.long_handle",
    "Options": "jobs",
    "Reply": "replies",
    "Settings": "settings",
    "ShoalError": "errors",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that the command line and `import shoal` stay quick."""
    if name in _HOMES:
        return getattr(import_module(f"shoal.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
