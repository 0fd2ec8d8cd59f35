"""Paths that long jobs may use: paths below the folders and URLs in the setting `roots`."""

import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from shoal.contract.excerpt import excerpt
from shoal.errors import PathNotAllowed
from shoal.process.private_network import without_query
from shoal.settings import Settings

_FILE = "file://"


def allowed_path(path: str, settings: Settings) -> str:
    """Return an absolute path with links followed, or a URL unchanged. Raises PathNotAllowed."""
    if "://" in path and not path.startswith(_FILE):
        if is_below(path, settings.root_urls()):
            return path
        raise PathNotAllowed(
            f"{excerpt(without_query(path))} is below none of the URLs that long jobs may use: {_REMEDY}"
        )
    try:
        local = unquote(path.removeprefix(_FILE)) if path.startswith(_FILE) else path
        found = (settings.files_folder / local).resolve()
        if any(found.is_relative_to(folder.resolve()) for folder in settings.root_folders()):
            return str(found)
    except (OSError, ValueError, RuntimeError) as error:  # for example for a circle of links or a NUL byte
        raise PathNotAllowed(f"{excerpt(path)} is no path of a file or folder: correct it") from error
    raise PathNotAllowed(f"{excerpt(path)} is below none of the folders that long jobs may use: {_REMEDY}")


_REMEDY = "move it there, or add its folder or the beginning of its URL to SHOAL_ROOTS"


def is_below(url: str, roots: Iterable[str]) -> bool:
    """Return True if a URL has the scheme and the server or bucket of a root, and a path below the root's path."""
    return any(_is_below(url, root) for root in roots)


def _is_below(url: str, root: str) -> bool:
    try:
        found, allowed = urlsplit(url), urlsplit(root)
    except ValueError:
        return False
    segments = re.split(r"[/\\]", unquote(unquote(found.path)))
    is_plain = "::" not in url and not {".", ".."} & set(segments)
    is_there = (found.scheme, found.netloc) == (allowed.scheme, allowed.netloc or found.netloc)
    return is_there and is_plain and f"{found.path}/".startswith(f"{allowed.path.rstrip('/')}/")
