"""Compressed files, unpacked while they are read: gzip and zstd.

Python has zstd from 3.14 on; before, it comes from the `zstd` extra.
"""

import gzip
import io
import sys
import zlib
from typing import Any

from shoal.errors import MissingExtra
from shoal.process.extra import install_command

#: The endings of the names of compressed files.
ENDINGS = (".gz", ".zst")


def unpacked(stream: "io.BufferedReader[Any]", name: str) -> Any:
    """Return the stream, or another that unpacks it as the ending of the file's name says.

    Raises MissingExtra if zstd is needed and not installed. Reading what it returns raises one of `faults(name)` where
    the data are damaged or end too early.
    """
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=stream)
    return _zstd().ZstdFile(stream) if name.endswith(".zst") else stream


def faults(name: str) -> tuple[type[Exception], ...]:
    """Return the exceptions by which reading a compressed file of that name says that it is damaged."""
    if name.endswith(".gz"):
        return EOFError, gzip.BadGzipFile, zlib.error
    return (EOFError, _zstd().ZstdError) if name.endswith(".zst") else ()


def _zstd() -> Any:
    """Return the module for zstd."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        try:
            from backports import zstd
        except ImportError as error:
            raise MissingExtra(f"reading .zst needs backports.zstd; run: {install_command('zstd')}") from error
    return zstd
