"""The base of the shapes of errors, each of which stands at many routes."""

from collections.abc import Callable
from functools import cache
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

from shoal_api.schema import headers


class ErrorShape(BaseModel):
    """A shape whose JSON schema is made once: making it for every route took a tenth of the API's start."""

    model_config = cast(ConfigDict, {"openapi_extra": {"description": "An error", "headers": headers.ERROR}})

    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the JSON schema that pydantic makes with these options; do not change it."""
        return _made(super().model_json_schema, *args, **options)


@cache
def _made(make: Callable[..., dict[str, Any]], *args: Any, **options: Any) -> dict[str, Any]:
    return make(*args, **options)
