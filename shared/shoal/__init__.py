"""Shoal's contract and client: all that a program needs to put jobs into the queue and get replies out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.client.async_client import AsyncClient
    from shoal.client.client import Client
    from shoal.client.handle import AsyncHandle, Handle
    from shoal.client.http_client import HttpClient
    from shoal.client.http_long_handle import HttpLongHandle
    from shoal.client.index_handle import AsyncIndexHandle, IndexHandle
    from shoal.client.long_handle import AsyncLongHandle, LongHandle
    from shoal.client.source_file import ServerFile
    from shoal.errors import ShoalError
    from shoal.jobs import Job, Options
    from shoal.replies import Chunk, Reply
    from shoal.settings import Settings

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "AsyncHandle",
    "AsyncIndexHandle",
    "AsyncLongHandle",
    "Chunk",
    "Client",
    "Handle",
    "HttpClient",
    "HttpLongHandle",
    "IndexHandle",
    "Job",
    "LongHandle",
    "Options",
    "Reply",
    "ServerFile",
    "Settings",
    "ShoalError",
]

_HOMES = {
    "AsyncClient": "client.async_client",
    "AsyncHandle": "client.handle",
    "AsyncIndexHandle": "client.index_handle",
    "AsyncLongHandle": "client.long_handle",
    "Chunk": "replies",
    "Client": "client.client",
    "Handle": "client.handle",
    "HttpClient": "client.http_client",
    "HttpLongHandle": "client.http_long_handle",
    "IndexHandle": "client.index_handle",
    "Job": "jobs",
    "LongHandle": "client.long_handle",
    "Options": "jobs",
    "Reply": "replies",
    "ServerFile": "client.source_file",
    "Settings": "settings",
    "ShoalError": "errors",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that the command line and `import shoal` stay quick."""
    if name in _HOMES:
        return getattr(import_module(f"shoal.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
