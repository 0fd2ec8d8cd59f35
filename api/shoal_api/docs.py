"""The description of the API for programs, and for people as a page that loads nothing from elsewhere."""

from flask import Response, current_app, redirect
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag
from flask_openapi3.openapi import OpenAPI
from flask_openapi3_swagger.plugins import RegisterPlugin  # type: ignore[import-untyped]
from werkzeug import Response as AnyResponse

from shoal_api.response import rendered
from shoal_api.schema import ERRORS

api = APIBlueprint("docs", __name__, abp_tags=[Tag(name="service")], abp_responses=ERRORS)

_OWN_FILES_ONLY = "default-src 'self' 'unsafe-inline'; img-src 'self' data:"


def install(app: OpenAPI) -> None:
    """Adds the description and the page to `app`."""
    app.config["SWAGGER_CONFIG"] = {"validatorUrl": None}  # else the page asks a public server to check ours
    page = RegisterPlugin.register(doc_url="../openapi.json")
    page.after_request(_confine)
    app.register_blueprint(page, url_prefix="/docs")
    app.register_api(api)


@api.get("/openapi.json", responses={200: {"content": {"application/json": {"schema": {"type": "object"}}}}})
def openapi() -> Response:
    """This description."""
    assert isinstance(current_app, OpenAPI)
    return rendered(current_app.api_doc)


@api.get("/docs", responses={302: None})
def docs() -> AnyResponse:
    """The page to browse and try the API."""
    return redirect("docs/swagger")


def _confine(response: Response) -> Response:
    response.headers["Content-Security-Policy"] = _OWN_FILES_ONLY
    return response
