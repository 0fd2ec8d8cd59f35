"""GET /: the page for browsers, and links for programs. GET /page/{file}: the files of which the page is made."""

import gzip
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Self

from flask import Response, abort
from werkzeug.datastructures import Headers

from shoal import __version__
from shoal_api.answers.response import NO_FRAMES, SAFETY, WholeResponse, rendered
from shoal_api.description import Blueprint
from shoal_api.request import json_request
from shoal_api.schema.errors import ErrorBody
from shoal_api.schema.requests import PageFilePath
from shoal_api.schema.responses import Links

api = Blueprint("page", __name__, "service", ErrorBody)

#: The folder of the files.
FOLDER = Path(__file__).parent.parent / "page"

#: The media types of the files that are served; others in the folder are not.
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}

#: The content security policy of the page: it loads, and asks, this server alone.
_OWN_FILES_ONLY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    f"connect-src 'self'; base-uri 'none'; form-action 'none'; {NO_FRAMES}"
)

#: Headers of each file. A browser keeps a file, and asks each time whether it has changed.
_SAFETY = (*SAFETY, ("Cache-Control", "no-cache"), ("Content-Security-Policy", _OWN_FILES_ONLY))


class PageFile(NamedTuple):
    """A file of the page: its bytes, as they are and compressed, and what its headers tell of it."""

    data: bytes
    packed: bytes
    media_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file."""
        data = path.read_bytes()
        return cls(data, gzip.compress(data, mtime=0), MEDIA_TYPES[path.suffix], sha256(data).hexdigest()[:16])


@cache
def files() -> Mapping[str, PageFile]:
    """Return the files of the page by their names below its folder."""
    paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in MEDIA_TYPES)
    return {path.relative_to(FOLDER).as_posix(): PageFile.read(path) for path in paths}


@api.get("/", responses={200: Links})
async def root() -> Response:
    """Answer the page to browsers, and to programs the links to what says more."""
    request = json_request()
    request.is_negotiated = True
    if request.accept_mimetypes["text/html"] > request.accept_mimetypes["application/json"]:
        return _sent(files()["index.html"])
    links = {"docs": "/docs", "openapi": "/openapi.json", "info": "/info"}
    return rendered({"name": "shoal", "version": __version__, **links})


@api.get("/page/<path:file>", doc_ui=False)
async def page_file(path: PageFilePath) -> Response:
    """Answer a file of the page."""
    found = files().get(path.file)
    return _sent(found) if found else abort(404)


def _sent(file: PageFile) -> Response:
    """Return a file, compressed if the browser takes that, or 304 if it has the file already."""
    request = json_request()
    headers = Headers({"ETag": f'W/"{file.etag}"', "Vary": "Accept-Encoding"})
    if request.if_none_match.contains_weak(file.etag):
        response = WholeResponse(status=304, headers=headers)
    else:
        is_packed = request.accept_encodings["gzip"] > 0 and len(file.packed) < len(file.data)
        body = file.packed if is_packed else file.data
        headers.extend({"Content-Type": file.media_type, "Content-Length": str(len(body))})
        if is_packed:
            headers["Content-Encoding"] = "gzip"
        response = WholeResponse([body], headers=headers)
    response.safety = _SAFETY
    return response
