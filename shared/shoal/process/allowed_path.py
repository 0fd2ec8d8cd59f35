"""Paths of users, and the paths that long jobs may use: paths below the folders in the setting `roots`."""

from urllib.parse import unquote

from shoal.contract.excerpt import excerpt
from shoal.errors import InvalidRequest, PathNotAllowed
from shoal.settings import Settings


def local_path(name: str) -> str:
    """Return `name`, or the path in a file:// URL. Raises InvalidRequest for other URLs, and if `name` is not UTF-8."""
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise InvalidRequest(f"{name!a} has a name that is not UTF-8: rename it")
    scheme, colon, rest = name.partition("://")
    if colon and scheme != "file":
        raise InvalidRequest(
            f"{excerpt(f'{scheme}://…')} is a URL: name a file or folder, and download it first, for example by curl -O"
        )
    return unquote(rest) if colon else name


def allowed_path(path: str, settings: Settings) -> str:
    """Return an absolute path with links followed. Raises PathNotAllowed, and InvalidRequest for a URL."""
    try:
        found = (settings.files_folder / local_path(path)).resolve()
        if any(found.is_relative_to(folder.resolve()) for folder in settings.root_folders()):
            return str(found)
    except (OSError, ValueError, RuntimeError) as error:  # for example, a loop of links or a NUL byte
        raise PathNotAllowed(f"{excerpt(path)} is no path of a file or folder: correct it") from error
    raise PathNotAllowed(
        f"{excerpt(path)} is below none of the folders that long jobs may use: move it there, or add its folder to "
        "SHOAL_ROOTS"
    )
