"""GET /openapi.json and GET /docs: the description of the API, and a page made from it that loads no other site."""

import re
from base64 import b64encode
from hashlib import sha256
from typing import Any, cast

from flask import Response, current_app, redirect
from flask_openapi3.openapi import OpenAPI
from flask_openapi3.types import SecuritySchemesDict
from flask_openapi3_swagger.plugins import RegisterPlugin  # type: ignore[import-untyped]
from werkzeug import Response as AnyResponse

from shoal_api.access.access_control import OPEN_ROUTES
from shoal_api.answers.response import NO_FRAMES, SAFETY, WholeResponse, rendered
from shoal_api.context import Context, context
from shoal_api.description import Blueprint, describe_defaults
from shoal_api.request import MSGPACK_TYPES
from shoal_api.schema import headers
from shoal_api.schema.errors import ErrorBody

api = Blueprint("docs", __name__, "service", ErrorBody)

#: The content security policy of the page: its own files and its inline script. Swagger UI sets inline styles.
_OWN_FILES_ONLY = (
    "default-src 'none'; script-src 'self' {script}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    f"connect-src 'self'; base-uri 'none'; form-action 'none'; {NO_FRAMES}"
)

#: The two ways to send a key; either will do.
_SECURITY_SCHEMES: SecuritySchemesDict = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key, as `shoal key new` prints it"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}

#: The content of a body that may be a file.
_FILE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def install(app: OpenAPI) -> None:
    """Add the description and the page to `app`."""
    if Context.of(app).access.needs_keys:
        app.security_schemes = _SECURITY_SCHEMES
    app.config["SWAGGER_CONFIG"] = {"validatorUrl": None}  # the default sends the description to a public server
    page = RegisterPlugin.register(doc_url="../openapi.json")
    page.after_request(_confine)
    app.register_blueprint(page, url_prefix="/docs")
    app.register_api(api)


@api.get("/openapi.json", responses={200: {"content": {"application/json": {"schema": {"type": "object"}}}}})
def openapi() -> Response:
    """Describe the API by OpenAPI."""
    assert isinstance(current_app, OpenAPI)
    description = current_app.api_doc
    operations = [about for methods in description["paths"].values() for about in methods.values()]
    bodies = [operation.get("requestBody") for operation in operations]
    describe_defaults(description["components"]["schemas"], bodies)
    for operation in operations:
        if content := operation.get("requestBody", {}).get("content"):
            content |= dict.fromkeys(MSGPACK_TYPES, content["application/json"])
            if any(parameter["name"] == "name" for parameter in operation.get("parameters", ())):
                content |= _FILE
    if context().access.needs_keys:
        _describe_keys(description, operations)
    else:
        description["components"].pop("securitySchemes", None)  # which are null
    return rendered(description)


def _describe_keys(description: dict[str, Any], operations: list[dict[str, Any]]) -> None:
    description["security"] = [{name: []} for name in _SECURITY_SCHEMES]
    for response in (response for operation in operations for response in operation["responses"].values()):
        response["headers"] = response.get("headers", {}) | headers.RATE
    for operation in (description["paths"][route]["get"] for route in OPEN_ROUTES):
        operation["security"] = []


@api.get("/docs", responses={302: None})
async def docs() -> AnyResponse:
    """Redirect to the page to browse and try the API."""
    return redirect("docs/swagger")


def _confine(response: Response) -> Response:
    """Have the page or file in memory, and set its security policy."""
    response.direct_passthrough = False
    response.set_data(response.get_data())
    response.close()
    found = _SCRIPT.findall(response.data) if response.mimetype == "text/html" else ()
    digests = [sha256(script).digest() for script in found]
    scripts = " ".join(f"'sha256-{b64encode(digest).decode()}'" for digest in digests)
    policy = ("Content-Security-Policy", _OWN_FILES_ONLY.format(script=scripts))
    cast(WholeResponse, response).safety = (*SAFETY, policy)
    return response
