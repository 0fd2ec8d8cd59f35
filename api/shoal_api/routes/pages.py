"""GET / and /page/{file}: the page for browsers. GET /openapi.json and /docs: the description of the API."""

import mimetypes
import re
from base64 import b64encode
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flask import Blueprint as FilesBlueprint
from flask import Response, current_app, redirect
from flask_openapi3.openapi import OpenAPI
from flask_openapi3.types import SecuritySchemesDict
from flask_openapi3_swagger.plugins import RegisterPlugin  # type: ignore[import-untyped]
from werkzeug import Response as AnyResponse

from shoal import __version__
from shoal_api.access.access_control import OPEN_ROUTES
from shoal_api.answers.response import NO_FRAMES, SAFETY, WholeResponse, json_response
from shoal_api.answers.vector_format import JSON, best_type
from shoal_api.blueprint import Blueprint
from shoal_api.context import context
from shoal_api.request import MSGPACK_TYPES, json_request
from shoal_api.schema.error_statuses import ErrorBody
from shoal_api.schema.responses import RATE_HEADERS, DocumentedAnswer

if TYPE_CHECKING:
    from shoal_api.server.async_flask import AsyncFlask

api = Blueprint("page", __name__, "service", ErrorBody)
docs_api = Blueprint("docs", __name__, "service", ErrorBody)

#: The folder of the page's files.
FOLDER = Path(__file__).parent.parent / "page"

page_files = FilesBlueprint("files", __name__, static_folder=FOLDER, static_url_path="/page")

mimetypes.add_type("text/javascript", ".js")  # the system's table of types may lack it, or differ
mimetypes.add_type("font/woff2", ".woff2")

#: The content security policy of a page: it loads files only from this server, and sends requests only to it. An inline
#: script needs its digest in `scripts`.
_POLICY = (
    "default-src 'none'; script-src 'self'{scripts}; style-src 'self'{styles}; img-src 'self' data:; font-src 'self'; "
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


@api.get("/", responses={200: DocumentedAnswer})
async def root() -> Response:
    """Return the page to browsers, and links to the documentation to programs."""
    if best_type((JSON, "text/html")) == "text/html":
        return _prepare(page_files.send_static_file("index.html"))
    below = json_request().root_path
    links = {"docs": f"{below}/docs", "openapi": f"{below}/openapi.json", "info": f"{below}/info"}
    return json_response({"name": "shoal", "version": __version__, **links})


@page_files.after_request
def _prepare(response: Response) -> Response:
    """Set the security policy of a file of the page."""
    return response if response.status_code >= 400 else _confine(response)


def install(app: "AsyncFlask") -> None:
    """Add OpenAPI's description, and the page to browse it, to the application."""
    if app.own.access.needs_keys:
        app.security_schemes = _SECURITY_SCHEMES
    app.config["SWAGGER_CONFIG"] = {"validatorUrl": None}  # the default sends the description to a public server
    page = RegisterPlugin.register(doc_url="../openapi.json")
    page.after_request(partial(_confine, styles=" 'unsafe-inline'"))  # Swagger UI sets inline styles
    app.register_blueprint(page, url_prefix="/docs")
    app.register_blueprint(page_files)
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
        if headers := operation.pop("x-headers", ()):  # flask_openapi3 drops headers if there are other parameters
            operation["parameters"] = [*operation.get("parameters", ()), *headers]
        if content := operation.get("requestBody", {}).get("content"):
            content |= dict.fromkeys(MSGPACK_TYPES, content["application/json"])
            if any(parameter["name"] == "name" for parameter in operation.get("parameters", ())):
                content |= _FILE
    description["servers"] = [{"url": "."}]  # relative to this description, below the path of any pool or proxy
    if context().access.needs_keys:
        description["security"] = [{name: []} for name in _SECURITY_SCHEMES]
        for response in (response for operation in operations for response in operation["responses"].values()):
            response["headers"] = response.get("headers", {}) | RATE_HEADERS
        for operation in (description["paths"][route]["get"] for route in OPEN_ROUTES):
            operation["security"] = []
    else:
        description["components"].pop("securitySchemes", None)  # an empty entry would be null
    return json_response(description)


@docs_api.get("/docs", responses={302: None})
async def docs() -> AnyResponse:
    """Redirect to the page to browse and try the API."""
    return redirect("docs/swagger")


def _confine(response: Response, styles: str = "") -> Response:
    """Read the page or file into memory, and set its security policy; `styles` are allowed besides the server's own."""
    response.direct_passthrough = False
    response.set_data(response.get_data())
    response.close()
    found = _SCRIPT.findall(response.data) if response.mimetype == "text/html" else ()
    digests = [sha256(script).digest() for script in found]
    scripts = "".join(f" 'sha256-{b64encode(digest).decode()}'" for digest in digests)
    policy = _POLICY.format(scripts=scripts, styles=styles)
    cast(WholeResponse, response).safety = (*SAFETY, ("Content-Security-Policy", policy))
    return response


def _describe_defaults(schemas: dict[str, Any], bodies: list[Any]) -> None:
    """Move defaults of fields into descriptions, because generated clients would require fields with defaults."""
    names = {ref for body in bodies for ref in _REFERENCE.findall(str(body))}
    seen: set[str] = set()
    while names - seen:
        name = (names - seen).pop()
        seen.add(name)
        names |= set(_REFERENCE.findall(str(schemas[name])))
        for field in schemas[name].get("properties", {}).values():
            if (default := field.pop("default", None)) is not None:
                field["description"] = f"{field.get('description', '')}. Default: {default}".lstrip(". ")
