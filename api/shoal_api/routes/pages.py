"""GET / and /page/{file}: the page for browsers. GET /openapi.json and /docs: the description of the API."""

import gzip
import re
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from flask import Response, abort, current_app, redirect
from flask_openapi3.openapi import OpenAPI
from flask_openapi3.types import SecuritySchemesDict
from flask_openapi3_swagger.plugins import RegisterPlugin  # type: ignore[import-untyped]
from werkzeug import Response as AnyResponse
from werkzeug.datastructures import Headers

from shoal import __version__
from shoal_api.access.access_control import OPEN_ROUTES
from shoal_api.answers.response import NO_FRAMES, SAFETY, WholeResponse, json_response
from shoal_api.answers.vector_format import JSON, MAX_ACCEPT_CHARS, best_type
from shoal_api.blueprint import Blueprint
from shoal_api.context import context
from shoal_api.request import MSGPACK_TYPES, json_request
from shoal_api.schema.errors import ErrorBody
from shoal_api.schema.requests import PageFilePath
from shoal_api.schema.responses import RATE_HEADERS, Links

if TYPE_CHECKING:
    from shoal_api.server.async_flask import AsyncFlask

api = Blueprint("page", __name__, "service", ErrorBody)
docs_api = Blueprint("docs", __name__, "service", ErrorBody)

#: The folder of the page's files.
FOLDER = Path(__file__).parent.parent / "page"

#: The media types of the served files, by the end of their names. Other files in the folder are not served.
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}

#: The content security policy of the page: the page loads files only from this server, and sends requests only to it.
_OWN_FILES_ONLY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    f"connect-src 'self'; base-uri 'none'; form-action 'none'; {NO_FRAMES}"
)

#: Headers of each file. A browser keeps a file, and asks at each use whether it has changed.
_SAFETY = (*SAFETY, ("Cache-Control", "no-cache"), ("Content-Security-Policy", _OWN_FILES_ONLY))

#: The content security policy of Swagger UI's page: its own files and its inline script. Swagger UI sets inline styles.
_SWAGGER_POLICY = (
    "default-src 'none'; script-src 'self' {script}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    f"connect-src 'self'; base-uri 'none'; form-action 'none'; {NO_FRAMES}"
)

#: The two ways to send a key. A request needs one of them.
_SECURITY_SCHEMES: SecuritySchemesDict = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key, as `shoal key new` prints it"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}

#: The content of a body that may be a file.
_FILE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)

#: A reference in OpenAPI to a schema, by the schema's name.
_REFERENCE = re.compile(r"#/components/schemas/([\w.-]+)")


class PageFile(NamedTuple):
    """A file of the page: its bytes, plain and compressed, and the values of its headers."""

    data: bytes
    packed: bytes
    media_type: str
    etag: str


@cache
def files() -> Mapping[str, PageFile]:
    """Return the files of the page by their names below its folder."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if media_type := MEDIA_TYPES.get(path.suffix):
            data = path.read_bytes()
            file = PageFile(data, gzip.compress(data, mtime=0), media_type, sha256(data).hexdigest()[:16])
            found[path.relative_to(FOLDER).as_posix()] = file
    return found


@api.get("/", responses={200: Links})
async def root() -> Response:
    """Return the page to browsers, and links to the documentation to programs."""
    if best_type((JSON, "text/html")) == "text/html":
        return _file_response(files()["index.html"])
    below = json_request().root_path
    links = {"docs": f"{below}/docs", "openapi": f"{below}/openapi.json", "info": f"{below}/info"}
    return json_response({"name": "shoal", "version": __version__, **links})


@api.get("/page/<path:file>", doc_ui=False)
async def page_file(path: PageFilePath) -> Response:
    """Return a file of the page."""
    found = files().get(path.file)
    return _file_response(found) if found else abort(404)


def _file_response(file: PageFile) -> Response:
    """Return a file, compressed if the browser accepts that, or 304 if the browser has the file already."""
    request = json_request()
    headers = Headers({"ETag": f'W/"{file.etag}"', "Vary": "Accept-Encoding"})
    if request.if_none_match.contains_weak(file.etag):
        response = WholeResponse(status=304, headers=headers)
    else:
        is_short = len(request.environ.get("HTTP_ACCEPT_ENCODING", "")) <= MAX_ACCEPT_CHARS
        is_packed = is_short and request.accept_encodings["gzip"] > 0 and len(file.packed) < len(file.data)
        body = file.packed if is_packed else file.data
        headers.extend({"Content-Type": file.media_type, "Content-Length": str(len(body))})
        if is_packed:
            headers["Content-Encoding"] = "gzip"
        response = WholeResponse([body], headers=headers)
    response.safety = _SAFETY
    return response


def install(app: "AsyncFlask") -> None:
    """Add OpenAPI's description, and the page to browse it, to the application."""
    if app.own.access.needs_keys:
        app.security_schemes = _SECURITY_SCHEMES
    app.config["SWAGGER_CONFIG"] = {"validatorUrl": None}  # the default sends the description to a public server
    page = RegisterPlugin.register(doc_url="../openapi.json")
    page.after_request(_confine)
    app.register_blueprint(page, url_prefix="/docs")
    app.register_api(docs_api)


@docs_api.get("/openapi.json", responses={200: {"content": {"application/json": {"schema": {"type": "object"}}}}})
def openapi() -> Response:
    """Describe the API by OpenAPI."""
    assert isinstance(current_app, OpenAPI)
    description = current_app.api_doc
    operations = [about for methods in description["paths"].values() for about in methods.values()]
    bodies = [operation.get("requestBody") for operation in operations]
    _describe_defaults(description["components"]["schemas"], bodies)
    for operation in operations:
        if headers := operation.pop("x-headers", ()):  # flask_openapi3 would drop them beside other parameters
            operation["parameters"] = [*operation.get("parameters", ()), *headers]
        if content := operation.get("requestBody", {}).get("content"):
            content |= dict.fromkeys(MSGPACK_TYPES, content["application/json"])
            if any(parameter["name"] == "name" for parameter in operation.get("parameters", ())):
                content |= _FILE
    if below := json_request().root_path:
        description["servers"] = [{"url": below}]
    if context().access.needs_keys:
        description["security"] = [{name: []} for name in _SECURITY_SCHEMES]
        for response in (response for operation in operations for response in operation["responses"].values()):
            response["headers"] = response.get("headers", {}) | RATE_HEADERS
        for operation in (description["paths"][route]["get"] for route in OPEN_ROUTES):
            operation["security"] = []
    else:
        description["components"].pop("securitySchemes", None)  # the value is null
    return json_response(description)


@docs_api.get("/docs", responses={302: None})
async def docs() -> AnyResponse:
    """Redirect to the page to browse and try the API."""
    return redirect("docs/swagger")


def _confine(response: Response) -> Response:
    """Read the page or file into memory, and set its security policy."""
    response.direct_passthrough = False
    response.set_data(response.get_data())
    response.close()
    found = _SCRIPT.findall(response.data) if response.mimetype == "text/html" else ()
    digests = [sha256(script).digest() for script in found]
    scripts = " ".join(f"'sha256-{b64encode(digest).decode()}'" for digest in digests)
    policy = ("Content-Security-Policy", _SWAGGER_POLICY.format(script=scripts))
    cast(WholeResponse, response).safety = (*SAFETY, policy)
    return response


def _describe_defaults(schemas: dict[str, Any], bodies: list[Any]) -> None:
    """Move defaults of bodies' fields into their descriptions: client generators require a field with a default."""
    names = {ref for body in bodies for ref in _REFERENCE.findall(str(body))}
    seen: set[str] = set()
    while names - seen:
        name = (names - seen).pop()
        seen.add(name)
        names |= set(_REFERENCE.findall(str(schemas[name])))
        for field in schemas[name].get("properties", {}).values():
            if (default := field.pop("default", None)) is not None:
                field["description"] = f"{field.get('description', '')}. Default: {default}".lstrip(". ")
