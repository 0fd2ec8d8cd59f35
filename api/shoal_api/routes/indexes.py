"""GET /v1/indexes: the indexes that are served."""

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag

from shoal_api.context import context
from shoal_api.response import rendered
from shoal_api.schema.responses import ERRORS, Indexes

api = APIBlueprint("indexes", __name__, abp_tags=[Tag(name="service")], abp_responses=ERRORS)


@api.get("/v1/indexes", responses={200: Indexes})
def indexes() -> Response:
    """List the indexes that ready workers serve."""
    pool = context().pool.read()
    errors = pool.index_errors
    described = [{"name": name, **about, "error": errors.get(name)} for name, about in pool.indexes.items()]
    return rendered({"indexes": described})
